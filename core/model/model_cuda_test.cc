// Attention of packed sequences and log-probabilities on a GPU, against the same on the CPU.

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <vector>

#include "core/hardware/device.h"
#include "core/model/decoder/decoder.h"
#include "core/model/decoder/packed_attention.h"
#include "core/model/decoder/vocabulary_head.h"

namespace quartet {
namespace {

const at::Device kGpu(at::kCUDA, 0);

struct Shape {
  int64_t heads, kv_heads, head_dim;
  at::ScalarType type;
};

// The result, then the gradients of queries, keys and values.
std::vector<at::Tensor> Attended(const SequenceRows& rows, const std::vector<at::Tensor>& qkv,
                                 const at::Tensor& gradient, at::ScalarType type, at::Device device) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : qkv) leaves.push_back(x.to(type).to(device).set_requires_grad(true));
  const PackedCausalAttention attention(rows);
  const at::Tensor out = attention.Attend(leaves[0], leaves[1], leaves[2]);
  std::vector<at::Tensor> all = torch::autograd::grad({out}, leaves, {gradient.to(type).to(device)});
  all.insert(all.begin(), out.detach());
  for (at::Tensor& tensor : all) tensor = tensor.cpu().to(at::kDouble);
  return all;
}

TEST(PackedCausalAttention, OnAGpuIsThatOfTheCpu) {
  if (const absl::Status entered = EnterDevice(kGpu); !entered.ok()) GTEST_SKIP() << entered;
  at::manual_seed(1);
  for (const auto& [H, K, d, type] :
       {Shape{9, 3, 64, at::kBFloat16}, Shape{8, 8, 128, at::kBFloat16}, Shape{4, 2, 80, at::kBFloat16},
        Shape{4, 2, 12, at::kBFloat16}, Shape{9, 3, 64, at::kFloat}}) {
    for (const SequenceRows& rows :
         {SequenceRows{{0, 200}, {}}, SequenceRows{{0, 1, 1, 130, 400, 407}, {}}, SequenceRows{{0, 64, 128, 192}, {}},
          // Trees: a prompt with answers, one of them a token; branches of several depths, an end inside of another
          // sequence, equal ones.
          SequenceRows{{0, 300, 345, 346, 424}, {0, 256, 256, 256}},
          SequenceRows{{0, 40, 70, 75, 75, 275, 278, 279, 319, 389}, {0, 25, 50, 55, 0, 200, 100, 101, 48}}}) {
      const int64_t T = rows.rows();
      const std::vector<at::Tensor> qkv = {at::randn({T, H, d}), at::randn({T, K, d}), at::randn({T, K, d})};
      const at::Tensor gradient = at::randn({T, H, d});
      std::vector<at::Tensor> rounded;
      for (const at::Tensor& x : qkv) rounded.push_back(x.to(type).to(at::kDouble));
      const auto expected = Attended(rows, rounded, gradient.to(type).to(at::kDouble), at::kDouble, at::kCPU);
      const auto found = Attended(rows, qkv, gradient, type, kGpu);
      for (size_t i = 0; i < found.size(); ++i) {
        const double difference = ((found[i] - expected[i]).norm() / expected[i].norm()).item<double>();
        EXPECT_LT(difference, type == at::kFloat ? 2e-6 : 1e-2)
            << H << " heads of " << d << ", " << type << ", " << rows.count() << (rows.shared.empty() ? "" : " shared")
            << " sequences, of " << i;
      }
    }
  }
}

// Log-probabilities, entropies, and the gradients of hidden states and head.
std::vector<at::Tensor> Scored(const at::Tensor& hidden_TD, const at::Tensor& head_VD, const std::vector<int64_t>& rows,
                               const std::vector<int64_t>& ids, double temperature, const EntropyRequest& entropy,
                               at::Device device) {
  const at::Tensor hidden = hidden_TD.to(device).set_requires_grad(true);
  const at::Tensor head = head_VD.to(device).set_requires_grad(true);
  // Three chunks.
  const TokenLogProbs scored = ChunkedLogProbs(hidden, head, MakeHeadTargets(rows, ids, device), temperature, entropy,
                                               int64_t{15} * head.size(0) * int64_t{sizeof(float)});
  at::Tensor loss = (scored.log_prob_T * scored.log_prob_T.detach()).sum();
  if (entropy.differentiable) loss = loss + (scored.entropy_T * 3).sum();
  std::vector<at::Tensor> all = torch::autograd::grad({loss}, {hidden, head});
  all.push_back(scored.log_prob_T.detach());
  if (entropy.wanted) all.push_back(scored.entropy_T.detach());
  for (at::Tensor& tensor : all) tensor = tensor.cpu().to(at::kDouble);
  return all;
}

void ExpectThoseOfTheCpu(const std::vector<int64_t>& rows, const std::vector<int64_t>& ids) {
  if (const absl::Status entered = EnterDevice(kGpu); !entered.ok()) GTEST_SKIP() << entered;
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t vocabulary : {1003, 8192}) {
      for (const double temperature : {1.0, 0.7}) {
        for (const bool with_entropy : {false, true}) {
          for (const double entropy_temperature : {1.0, 0.7}) {
            const EntropyRequest entropy = {
                .wanted = with_entropy, .temperature = entropy_temperature, .differentiable = with_entropy};
            const at::Tensor hidden = at::randn({37, 64}).to(type), head = at::randn({vocabulary, 64}).to(type);
            const auto expected = Scored(hidden, head, rows, ids, temperature, entropy, at::kCPU);
            const auto found = Scored(hidden, head, rows, ids, temperature, entropy, kGpu);
            for (size_t i = 0; i < found.size(); ++i) {
              const double difference = ((found[i] - expected[i]).norm() / expected[i].norm()).item<double>();
              // Gradients in bf16 are rounded in other places: a sum over chunks is taken in fp32 on a GPU.
              EXPECT_LT(difference, type == at::kFloat || i >= 2 ? 1e-5 : 5e-3)
                  << type << ", " << vocabulary << ", temperatures " << temperature << " and " << entropy_temperature
                  << ", entropy " << with_entropy << ", of " << i;
            }
          }
        }
      }
    }
  }
}

TEST(ChunkedLogProbs, OnAGpuAreThoseOfTheCpu) {
  std::vector<int64_t> rows(37), ids(37);
  std::iota(rows.begin(), rows.end(), 0);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(23 * i);
  ExpectThoseOfTheCpu(rows, ids);
}

TEST(ChunkedLogProbs, OnAGpuAreThoseOfTheCpuWhereTargetsShareRows) {
  ExpectThoseOfTheCpu({5, 3, 5, 5, 0, 3, 22, 36, 20, 21}, {1, 2, 1, 7, 8, 56, 0, 1002, 500, 500});
}

}  // namespace
}  // namespace quartet
