#include "core/training/batch_split.h"

#include <algorithm>
#include <numeric>

#include "core/base/logging.h"

namespace quartet {

BatchSplit SplitBatch(const std::vector<int64_t>& tokens, int ranks, int micro_batch_size) {
  QUARTET_CHECK(ranks >= 1 && micro_batch_size >= 1) << ranks << " ranks, micro-batches of " << micro_batch_size;
  std::vector<size_t> longest_first(tokens.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](size_t a, size_t b) { return tokens[a] > tokens[b]; });

  const size_t most = (tokens.size() + ranks - 1) / ranks;
  BatchSplit split;
  split.items.resize(ranks);
  std::vector<int64_t> load(ranks, 0);
  for (size_t item : longest_first) {
    int best = -1;
    for (int rank = 0; rank < ranks; ++rank) {
      if (split.items[rank].size() == most) continue;
      if (best < 0 || load[rank] < load[best]) best = rank;
    }
    split.items[best].push_back(item);
    load[best] += tokens[item];
  }
  split.micro_batches = (most + micro_batch_size - 1) / micro_batch_size;
  return split;
}

}  // namespace quartet
