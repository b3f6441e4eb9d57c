// Attention over packed sequences and its gradients, against LibTorch's scaled_dot_product_attention in fp64.

#include "core/kernels/cpu/attention/cpu_paged_attention.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quartet {
namespace {

struct Case {
  int64_t head_dim;
  int64_t kv_heads;
  int64_t group;
  std::vector<int64_t> cu_seqlens;

  std::string Name() const {
    std::string name = "head_dim " + std::to_string(head_dim) + ", group " + std::to_string(group) + ", starts";
    for (const int64_t start : cu_seqlens) name += " " + std::to_string(start);
    return name;
  }
};

const std::vector<Case>& Cases() {
  static const auto& cases = *new std::vector<Case>{
      {64, 3, 3, {0, 1}},                           // one token
      {64, 3, 3, {0, 15, 31, 48}},                  // shorter than a vector, as long, longer
      {64, 2, 4, {0, 0, 300, 300, 317, 381, 381}},  // several tiles; empty sequences first, between and last
      {64, 1, 1, {0, 256}},                         // whole tiles
      {8, 2, 2, {0, 33, 70}},                       // a head narrower than a vector
      {24, 2, 7, {0, 65}},                          // one that does not fill its vectors
      {128, 2, 5, {0, 100, 131}},
      {80, 1, 3, {0, 97}},
  };
  return cases;
}

struct Inputs {
  at::Tensor q_THd, k_TKd, v_TKd, out_gradient_THd;
};

Inputs RandomInputs(const Case& c, at::ScalarType type) {
  at::manual_seed(c.head_dim * 100 + c.cu_seqlens.back());
  const int64_t T = c.cu_seqlens.back(), H = c.kv_heads * c.group;
  return {.q_THd = (at::randn({T, H, c.head_dim}) * 2).to(type),
          .k_TKd = (at::randn({T, c.kv_heads, c.head_dim}) * 2).to(type),
          .v_TKd = at::randn({T, c.kv_heads, c.head_dim}).to(type),
          .out_gradient_THd = at::randn({T, H, c.head_dim}).to(type)};
}

struct Results {
  at::Tensor out_THd, log_sums_TH;
  AttentionGradients gradients;
};

Results Attended(const Case& c, const Inputs& in) {
  const PagedCacheLayout layout{16, c.kv_heads, c.head_dim};
  std::vector<std::vector<int32_t>> tables;
  std::vector<AttentionChunk> chunks;
  int32_t blocks = 0;
  for (size_t i = 0; i + 1 < c.cu_seqlens.size(); ++i) {
    const int64_t count = c.cu_seqlens[i + 1] - c.cu_seqlens[i];
    std::vector<int32_t>& table = tables.emplace_back((count + 15) / 16);
    std::iota(table.begin(), table.end(), blocks);
    blocks += static_cast<int32_t>(table.size());
    chunks.push_back({table.data(), 0, count});
  }
  // What lies beside the written keys must not matter.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor cache = at::full({blocks * layout.block_numel()}, nan, in.q_THd.options());
  Results results;
  results.out_THd = CpuPagedAttention(layout, chunks)
                        .Attend(cache.mutable_data_ptr(), in.q_THd, in.k_TKd, in.v_TKd, &results.log_sums_TH);
  EXPECT_TRUE(
      at::equal(results.out_THd,
                CpuPagedAttention(layout, chunks).Attend(cache.mutable_data_ptr(), in.q_THd, in.k_TKd, in.v_TKd)))
      << c.Name();
  results.gradients = CpuAttentionGradient({.cu_seqlens = c.cu_seqlens, .shared = {}}, in.q_THd, in.k_TKd, in.v_TKd,
                                           results.out_THd, results.log_sums_TH, in.out_gradient_THd);
  return results;
}

// By LibTorch, sequence by sequence, in fp64.
Results Expected(const Case& c, const Inputs& in) {
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).clone().set_requires_grad(true); };
  const at::Tensor q = leaf(in.q_THd), k = leaf(in.k_TKd), v = leaf(in.v_TKd);
  std::vector<at::Tensor> outs, sums;
  for (size_t i = 0; i + 1 < c.cu_seqlens.size(); ++i) {
    if (c.cu_seqlens[i] == c.cu_seqlens[i + 1]) continue;
    const auto part = [&](const at::Tensor& x, int64_t copies) {  // [heads, length, d]
      return x.slice(0, c.cu_seqlens[i], c.cu_seqlens[i + 1]).transpose(0, 1).repeat_interleave(copies, 0);
    };
    const at::Tensor pq = part(q, 1), pk = part(k, c.group), pv = part(v, c.group);
    outs.push_back(at::scaled_dot_product_attention(pq.unsqueeze(0), pk.unsqueeze(0), pv.unsqueeze(0), {}, 0.0, true)
                       .squeeze(0)
                       .transpose(0, 1));
    const at::Tensor scores = pq.matmul(pk.transpose(1, 2)) / std::sqrt(static_cast<double>(c.head_dim));
    sums.push_back((scores.exp().tril().sum(-1)).log().transpose(0, 1));
  }
  Results results;
  results.out_THd = at::cat(outs, 0);
  results.log_sums_TH = at::cat(sums, 0).detach();
  const auto found = torch::autograd::grad({results.out_THd}, {q, k, v}, {in.out_gradient_THd.to(at::kDouble)});
  results.gradients = {.q_THd = found[0], .k_TKd = found[1], .v_TKd = found[2]};
  return results;
}

// Norm of the difference over the norm.
double Difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

void ExpectClose(at::ScalarType type, double tolerance) {
  for (const Case& c : Cases()) {
    const Inputs in = RandomInputs(c, type);
    const Results results = Attended(c, in), expected = Expected(c, in);
    EXPECT_LT(Difference(results.out_THd, expected.out_THd), tolerance) << c.Name();
    EXPECT_LT((results.log_sums_TH - expected.log_sums_TH).abs().max().item<double>(), 2e-5) << c.Name();
    EXPECT_LT(Difference(results.gradients.v_TKd, expected.gradients.v_TKd), tolerance) << c.Name();
    if (c.cu_seqlens.back() == 1) {  // the only weight is 1, whatever the score
      EXPECT_LT(results.gradients.q_THd.abs().max().item<double>(), tolerance);
      EXPECT_LT(results.gradients.k_TKd.abs().max().item<double>(), tolerance);
      continue;
    }
    EXPECT_LT(Difference(results.gradients.q_THd, expected.gradients.q_THd), tolerance) << c.Name();
    EXPECT_LT(Difference(results.gradients.k_TKd, expected.gradients.k_TKd), tolerance) << c.Name();
  }
}

TEST(CpuPagedAttention, HasTheGradientsOfFullAttentionInFp32) { ExpectClose(at::kFloat, 1e-5); }

// One rounding of the output, whose error enters each score's gradient, and one of the gradient.
TEST(CpuPagedAttention, InBf16ItsGradientsAreAsExactAsTheirType) { ExpectClose(at::kBFloat16, 0.006); }

TEST(CpuPagedAttention, GivesASequenceTheSameBitsWhateverIsAroundIt) {
  const Case both = {64, 3, 3, {0, 37, 337}};
  const Inputs in = RandomInputs(both, at::kBFloat16);
  const Results together = Attended(both, in);
  const auto second = [](const at::Tensor& x) { return x.slice(0, 37); };
  const Results alone = Attended({64, 3, 3, {0, 300}},
                                 {second(in.q_THd), second(in.k_TKd), second(in.v_TKd), second(in.out_gradient_THd)});
  EXPECT_TRUE(at::equal(second(together.out_THd), alone.out_THd));
  EXPECT_TRUE(at::equal(second(together.gradients.q_THd), alone.gradients.q_THd));
  EXPECT_TRUE(at::equal(second(together.gradients.k_TKd), alone.gradients.k_TKd));
  EXPECT_TRUE(at::equal(second(together.gradients.v_TKd), alone.gradients.v_TKd));
}

// 36 sequences, the first 27 of which begin with the same three blocks, on one thread, which takes several at a time.
void ExpectSharedPrefixesChangeNothing(at::ScalarType type) {
  const PagedCacheLayout layout{16, 3, 64};
  constexpr int64_t kGroup = 3, kPrefix = 48;
  std::vector<int64_t> lengths;  // before the new token
  for (int64_t i = 0; i < 36; ++i) lengths.push_back(i < 27 ? 48 + i * i % 61 : 20 + i);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  at::manual_seed(3);
  const auto random = [&](int64_t tokens, int64_t heads) { return at::randn({tokens, heads, 64}).to(type); };
  const at::Tensor prefix_k = random(kPrefix, 3), prefix_v = random(kPrefix, 3);
  const at::Tensor cache = at::full({200 * layout.block_numel()}, std::nan(""), at::dtype(type));
  std::vector<std::vector<int32_t>> tables;
  std::vector<AttentionChunk> new_tokens;
  int32_t next_block = 3;
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<int32_t>& table = tables.emplace_back();
    const bool shares = i < 27;
    if (shares) table = {0, 1, 2};
    while (static_cast<int64_t>(table.size()) * 16 <= lengths[i]) table.push_back(next_block++);
    at::Tensor k = random(lengths[i], 3), v = random(lengths[i], 3);
    if (shares) {
      k.slice(0, 0, kPrefix).copy_(prefix_k);
      v.slice(0, 0, kPrefix).copy_(prefix_v);
    }
    CpuPagedAttention(layout, {{.blocks = table.data(), .first = 0, .count = lengths[i]}})
        .Attend(cache.mutable_data_ptr(), random(lengths[i], 3 * kGroup), k, v);
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    new_tokens.push_back({.blocks = tables[i].data(), .first = lengths[i], .count = 1});
  }
  const auto count = static_cast<int64_t>(lengths.size());
  const at::Tensor q = random(count, 3 * kGroup), k = random(count, 3), v = random(count, 3);
  at::Tensor log_sums;
  const at::Tensor together =
      CpuPagedAttention(layout, new_tokens).Attend(cache.mutable_data_ptr(), q, k, v, &log_sums);
  for (int64_t i = 0; i < count; ++i) {
    at::Tensor own_log_sums;
    const auto own = [&](const at::Tensor& x) { return x.slice(0, i, i + 1); };
    const at::Tensor alone = CpuPagedAttention(layout, {new_tokens[i]})
                                 .Attend(cache.mutable_data_ptr(), own(q), own(k), own(v), &own_log_sums);
    EXPECT_FALSE(alone.isnan().any().item<bool>()) << "sequence " << i;
    EXPECT_TRUE(at::equal(own(together), alone)) << "sequence " << i;
    EXPECT_TRUE(at::equal(own(log_sums), own_log_sums)) << "sequence " << i;
  }
  at::set_num_threads(threads);
}

TEST(CpuPagedAttention, GivesSequencesThatShareTheirPrefixTheBitsOfEachAlone) {
  ExpectSharedPrefixesChangeNothing(at::kFloat);
  ExpectSharedPrefixesChangeNothing(at::kBFloat16);
}

TEST(CpuPagedAttention, PaddingBehindTheSequencesBecomesZero) {
  const Case c = {16, 1, 2, {0, 20}};
  const Inputs in = RandomInputs(c, at::kFloat);
  const auto padded = [](const at::Tensor& x) {
    return at::cat({x, at::full({12, x.size(1), x.size(2)}, std::numeric_limits<float>::quiet_NaN())}, 0);
  };
  const Results results =
      Attended(c, {padded(in.q_THd), padded(in.k_TKd), padded(in.v_TKd), padded(in.out_gradient_THd)});
  EXPECT_TRUE(at::equal(results.out_THd.slice(0, 0, 20), Attended(c, in).out_THd));
  EXPECT_EQ(results.out_THd.slice(0, 20).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace quartet
