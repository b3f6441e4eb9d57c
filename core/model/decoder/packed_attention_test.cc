#include "core/model/decoder/packed_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

namespace quartet {
namespace {

double DifferenceOf(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).to(at::kDouble).norm() / b.to(at::kDouble).norm()).item<double>();
}

// A tree: branches inside of blocks and tiles, of several depths, longer than a tile, of one token; an end inside of
// another sequence, and equal ones.
SequenceRows Tree() {
  return {.cu_seqlens = {0, 40, 70, 75, 75, 275, 278, 279, 319, 389}, .shared = {0, 25, 50, 55, 0, 200, 100, 101, 48}};
}

// [T, heads, d] each: what a token's attention gives, and the gradients of the sum of its products with `gradient`.
struct Attended {
  at::Tensor out, q, k, v;
};

Attended AttendAndDifferentiate(const std::vector<at::Tensor>& qkv, const at::Tensor& gradient,
                                const std::function<at::Tensor(const std::vector<at::Tensor>&)>& attend) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : qkv) leaves.push_back(x.clone().set_requires_grad(true));
  const at::Tensor out = attend(leaves);
  const auto found = torch::autograd::grad({out}, leaves, {gradient});
  return {out.detach(), found[0], found[1], found[2]};
}

TEST(PackedCausalAttention, GivesSequencesThatBeginAlikeWhatEachHasAlone) {
  const SequenceRows tree = Tree();
  ASSERT_TRUE(tree.IsValid());
  const std::vector<std::vector<RowRange>> shared = SharedRanges(tree);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    at::manual_seed(1);
    const auto random = [&](int64_t heads) { return at::randn({tree.rows(), heads, 64}).to(type); };
    const std::vector<at::Tensor> qkv = {random(6), random(2), random(2)};
    const at::Tensor gradient = random(6);
    const Attended together = AttendAndDifferentiate(qkv, gradient, [&](const std::vector<at::Tensor>& x) {
      return PackedCausalAttention(tree).Attend(x[0], x[1], x[2]);
    });
    const Attended alone = AttendAndDifferentiate(qkv, gradient, [&](const std::vector<at::Tensor>& x) {
      std::vector<at::Tensor> own;
      for (size_t i = 0; i < tree.count(); ++i) {
        if (tree.OwnOf(i) == 0) continue;
        std::vector<at::Tensor> whole;
        for (const at::Tensor& all : x) {
          std::vector<at::Tensor> parts;
          for (const RowRange& range : shared[i]) parts.push_back(all.narrow(0, range.first, range.count));
          parts.push_back(all.slice(0, tree.cu_seqlens[i], tree.cu_seqlens[i + 1]));
          whole.push_back(at::cat(parts, 0));
        }
        const PackedCausalAttention attention({.cu_seqlens = {0, tree.LengthOf(i)}, .shared = {}});
        own.push_back(attention.Attend(whole[0], whole[1], whole[2]).slice(0, tree.SharedOf(i)));
      }
      return at::cat(own, 0);
    });
    EXPECT_TRUE(at::equal(together.out, alone.out)) << type;
    const double tolerance = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-6 : 0.01;
    EXPECT_LT(DifferenceOf(together.q, alone.q), tolerance) << type;
    EXPECT_LT(DifferenceOf(together.k, alone.k), tolerance) << type;
    EXPECT_LT(DifferenceOf(together.v, alone.v), tolerance) << type;
    at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(PackedCausalAttention(tree).Attend(qkv[0], qkv[1], qkv[2]), alone.out)) << type;
  }
}

TEST(PackedCausalAttention, TakesNoTokens) {
  const at::Tensor none = at::randn({0, 4, 8});
  EXPECT_EQ(PackedCausalAttention({.cu_seqlens = {0}, .shared = {}}).Attend(none, none, none).size(0), 0);
  EXPECT_EQ(PackedCausalAttention({.cu_seqlens = {0, 0}, .shared = {}}).Attend(none, none, none).size(0), 0);
}

}  // namespace
}  // namespace quartet
