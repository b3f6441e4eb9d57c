// Against LibTorch's scaled_dot_product_attention in fp64, over caches whose blocks are scattered.

#include "core/kernels/cpu/attention/paged_attention_kernel.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/kernels/cpu/attention/paged_attention_amx.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

struct KernelCase {
  int64_t head_dim;
  int64_t kv_heads;
  int64_t group;
  int64_t block_size;
  int64_t context;  // tokens that are in the cache before
  int64_t tokens;   // queries
};

// Keys [context + tokens] with the last `tokens` of them as queries; query t sees keys [0, context + t].
at::Tensor Expected(const at::Tensor& q_THd, const at::Tensor& k_NKd, const at::Tensor& v_NKd) {
  const int64_t tokens = q_THd.size(0);
  const int64_t keys = k_NKd.size(0);
  const at::Tensor mask = at::ones({tokens, keys}, at::kBool).tril(keys - tokens);
  const auto heads_first = [](const at::Tensor& x) { return x.to(at::kDouble).transpose(0, 1).unsqueeze(0); };
  return at::scaled_dot_product_attention(heads_first(q_THd), heads_first(k_NKd), heads_first(v_NKd), mask, 0.0, false,
                                          std::nullopt, /*enable_gqa=*/true)
      .squeeze(0)
      .transpose(0, 1);
}

template <typename Element>
constexpr Element kNotWritten = std::numeric_limits<Element>::quiet_NaN();
template <>
constexpr uint16_t kNotWritten<uint16_t> = 0x7FC0;  // NaN in bf16

template <typename Element>
double LargestDifference(const KernelCase& c, at::ScalarType type) {
  at::manual_seed(c.head_dim * 100 + c.context);
  const PagedCacheLayout layout{c.block_size, c.kv_heads, c.head_dim};
  const int64_t length = c.context + c.tokens;
  const int64_t heads = c.kv_heads * c.group;
  const at::Tensor q = (at::randn({c.tokens, heads, c.head_dim}) * 2).to(type);
  const at::Tensor k = (at::randn({length, c.kv_heads, c.head_dim}) * 2).to(type);
  const at::Tensor v = at::randn({length, c.kv_heads, c.head_dim}).to(type);

  const int64_t num_blocks = (length + c.block_size - 1) / c.block_size;
  std::vector<int32_t> blocks(num_blocks + 3);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(5));
  // What lies beside the written keys must not matter.
  std::vector<Element> cache(blocks.size() * layout.block_numel(), kNotWritten<Element>);
  const auto row = [](const at::Tensor& x, int64_t i) {
    return static_cast<const Element*>(x.const_data_ptr()) + i * x.stride(0);
  };
  for (int64_t t = 0; t < length; ++t) {
    Element* block = cache.data() + blocks[t / c.block_size] * layout.block_numel();
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      WriteToCache(layout, row(k, t) + head * c.head_dim, row(v, t) + head * c.head_dim, t % c.block_size,
                   block + head * layout.head_numel());
    }
  }
  const at::Tensor out = at::empty_like(q);
  for (int64_t head = 0; head < c.kv_heads; ++head) {
    PagedAttentionTask<Element> task;
    task.queries = row(q, 0) + head * c.group * c.head_dim;
    task.outputs = static_cast<Element*>(out.mutable_data_ptr()) + head * c.group * c.head_dim;
    task.token_stride = heads * c.head_dim;
    task.tokens = c.tokens;
    task.group = c.group;
    task.first_position = c.context;
    task.blocks = blocks.data();
    task.cache = cache.data();
    task.kv_head = head;
    PagedAttend(layout, task);
  }
  return (out.to(at::kDouble) - Expected(q, k, v)).abs().max().item<double>();
}

const std::vector<KernelCase>& KernelCases() {
  static const auto& cases = *new std::vector<KernelCase>{
      {64, 3, 3, 16, 100, 1},  // SmolLM2, decoding
      {64, 3, 3, 16, 0, 50},   // a whole prompt
      {64, 2, 4, 32, 37, 21},  // a chunk in the middle
      {16, 1, 1, 16, 0, 1},    // one key
      {8, 2, 2, 16, 15, 1},    // a head narrower than a vector; a full block
      {8, 2, 7, 48, 16, 3},   {80, 1, 5, 16, 300, 2}, {128, 4, 8, 16, 63, 2}, {24, 2, 1, 16, 500, 9},
  };
  return cases;
}

// Scores reach 40, whose last place is 4e-6.
TEST(PagedAttention, EqualsFullAttentionInFp32) {
  for (const KernelCase& c : KernelCases()) {
    EXPECT_LT(LargestDifference<float>(c, at::kFloat), 1e-5)
        << "head_dim " << c.head_dim << ", context " << c.context << ", tokens " << c.tokens;
  }
}

TEST(PagedAttention, InBf16IsAsExactAsItsOutputType) {
  for (const KernelCase& c : KernelCases()) {
    // Half a unit in the last place of values below 4, and the error of fp32; with tiles also that of weights in bf16,
    // of which each is wrong by at most 2^-9 of itself, one way or the other.
    const double most = HasAmxAttention({c.block_size, c.kv_heads, c.head_dim}) ? 0.0118 : 0.0079;
    EXPECT_LT(LargestDifference<uint16_t>(c, at::kBFloat16), most)
        << "head_dim " << c.head_dim << ", context " << c.context << ", tokens " << c.tokens;
  }
}

}  // namespace
}  // namespace quartet
