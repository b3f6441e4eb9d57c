#include "core/rl/sequence_sums.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <numeric>

#include "core/base/logging.h"

namespace quartet {
namespace {

// A scalar a sequence. Slices, where index_add would add in another order each time on a GPU.
std::vector<at::Tensor> Sums(const at::Tensor& values_A, const std::vector<int64_t>& lengths) {
  QUARTET_CHECK(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == values_A.numel()) << values_A.numel();
  std::vector<at::Tensor> sums;
  int64_t begin = 0;
  for (int64_t n : lengths) {
    sums.push_back(values_A.narrow(0, begin, n).sum());
    begin += n;
  }
  return sums;
}

}  // namespace

at::Tensor SequenceSums(const at::Tensor& values_A, const std::vector<int64_t>& lengths) {
  const std::vector<at::Tensor> sums = Sums(values_A, lengths);
  return sums.empty() ? values_A : at::stack(sums);
}

at::Tensor SequenceSumOfTokens(const at::Tensor& values_A, const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> sums = Sums(values_A, lengths);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i].expand({lengths[i]});
  return sums.empty() ? values_A : at::cat(sums);
}

}  // namespace quartet
