#include "core/kernels/linear.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

namespace quartet {
namespace {

at::Tensor Random(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }

TEST(Bf16Linear, HasWideSumsOfExactProducts) {
  for (const auto& [rows, inputs, outputs] : {std::tuple{1, 576, 192}, {7, 577, 1001}, {300, 64, 48}}) {
    const at::Tensor input = Random({rows, inputs}), weight = Random({outputs, inputs});
    const at::Tensor product = WideProduct(input, weight);
    EXPECT_EQ(product.scalar_type(), at::kFloat);
    const at::Tensor exact = at::mm(input.to(at::kDouble), weight.to(at::kDouble).t());
    const at::Tensor magnitude = at::mm(input.to(at::kDouble).abs(), weight.to(at::kDouble).abs().t());
    EXPECT_LE(((product - exact).abs() / magnitude).max().item<double>(), inputs * 0x1p-24 * 1.001);
  }
}

TEST(Bf16Linear, HasTheSameBitsWithAnyNumberOfThreads) {
  const at::Tensor weight = Random({1000, 576});
  for (const int64_t rows : {1, 32, 257}) {
    const at::Tensor input = Random({rows, 576});
    at::set_num_threads(1);
    const at::Tensor one = WideProduct(input, weight);
    for (const int threads : {2, 3, 40}) {  // 40: more than there are columns for
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(WideProduct(input, weight), one)) << rows << " rows, " << threads << " threads";
    }
  }
  at::set_num_threads(2);
}

TEST(Bf16Linear, AddsTheBiasToTheWideSum) {
  const at::Tensor input = Random({13, 96}), weight = Random({80, 96}), bias = Random({80});
  const at::Tensor sums = WideProduct(input, weight);
  EXPECT_TRUE(at::equal(Linear(input, weight, at::Tensor()), sums.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(Linear(input, weight, bias), (sums + bias.to(at::kFloat)).to(at::kBFloat16)));
}

TEST(Bf16Linear, AddsAResidualToTheRoundedProduct) {
  const at::Tensor weight = Random({80, 96}), packed = PackInPlace(weight.clone()), bias = Random({80});
  for (const int64_t rows : {0, 1, 13, 32, 300}) {
    const at::Tensor input = Random({rows, 96}), residual = Random({rows, 80}), across = Random({80, rows}).t();
    const at::Tensor product = Linear(input, weight, bias);
    EXPECT_TRUE(at::equal(LinearPlus(input, weight, bias, residual), product + residual));
    EXPECT_TRUE(at::equal(LinearPlus(input, packed, bias, residual), product + residual));
    EXPECT_TRUE(at::equal(LinearPlus(input, weight, bias, across), product + across));
    EXPECT_TRUE(at::equal(Linear(input, weight, bias), product));
  }
  at::Tensor ours = Random({13, 80}), theirs = ours.clone();
  const at::Tensor input = Random({13, 96}), upstream = Random({13, 80});
  ours.set_requires_grad(true);
  theirs.set_requires_grad(true);
  (LinearPlus(input, weight, bias, ours * 2) * upstream).sum().backward();
  ((at::linear(input, weight, bias) + theirs * 2) * upstream).sum().backward();
  EXPECT_TRUE(at::equal(ours.grad(), theirs.grad()));
}

// Whether `found` is `exact` (double), summed up in fp32 and rounded to bf16; `magnitude`: the sum of the magnitudes.
void ExpectRounded(const at::Tensor& found, const at::Tensor& exact, const at::Tensor& magnitude) {
  EXPECT_EQ(found.scalar_type(), at::kBFloat16);
  ASSERT_EQ(found.sizes(), exact.sizes());
  const at::Tensor allowed = exact.abs() * 0x1p-8 + magnitude * 0x1p-16;
  EXPECT_LE(((found.to(at::kDouble) - exact).abs() / allowed).max().item<double>(), 1);
}

TEST(Bf16Linear, HasTheGradientsOfItsSums) {
  const at::Tensor upstream = Random({13, 80});
  std::vector<at::Tensor> ours = {Random({13, 96}), Random({80, 96}), Random({80})}, exact, magnitude;
  for (at::Tensor& tensor : ours) {
    tensor.set_requires_grad(true);
    exact.push_back(tensor.detach().to(at::kDouble).set_requires_grad(true));
    magnitude.push_back(tensor.detach().to(at::kDouble).abs().set_requires_grad(true));
  }
  Linear(ours[0], ours[1], ours[2]).backward(upstream);
  at::linear(exact[0], exact[1], exact[2]).backward(upstream.to(at::kDouble));
  at::linear(magnitude[0], magnitude[1], magnitude[2]).backward(upstream.to(at::kDouble).abs());
  for (size_t i = 0; i < ours.size(); ++i) ExpectRounded(ours[i].grad(), exact[i].grad(), magnitude[i].grad());
}

TEST(Bf16Linear, MultipliesGradientsHoweverTheyLie) {
  const at::Tensor wide = Random({70, 90}), other = Random({50, 33});
  const std::pair<at::Tensor, at::Tensor> pairs[] = {
      {Random({13, 50}), other},                           // rows
      {Random({50, 13}).t(), other},                       // columns
      {wide.slice(0, 0, 50).slice(1, 10, 40).t(), other},  // some columns, as rows
      {Random({13, 50}), Random({33, 50}).t()},            // as weights lie
      {Random({13, 100}).slice(1, 0, 100, 2), other},      // neither rows nor columns end to end
      {Random({13, 50}), Random({50, 66}).slice(1, 0, 66, 2)},
  };
  for (const auto& [a, b] : pairs) {
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    ExpectRounded(GradientProduct(a, b), exact, at::mm(a.to(at::kDouble).abs(), b.to(at::kDouble).abs()));
  }
  EXPECT_TRUE(at::equal(GradientProduct(Random({4, 0}), Random({0, 5})), at::zeros({4, 5}, at::kBFloat16)));
  EXPECT_EQ(GradientProduct(Random({0, 4}), Random({4, 5})).sizes(), (std::vector<int64_t>{0, 5}));
}

TEST(Bf16Linear, LeavesOutGradientsThatNobodyWants) {
  const at::Tensor input = Random({4, 32}).set_requires_grad(true), weight = Random({16, 32});
  Linear(input, weight, at::Tensor()).sum().backward();
  EXPECT_TRUE(input.grad().defined());
  const c10::NoGradGuard no_grad;
  EXPECT_FALSE(Linear(input, weight, at::Tensor()).requires_grad());
}

TEST(Bf16Linear, HasTheSameBitsWithAPackedWeight) {
  for (const auto& [outputs, inputs] : {std::pair{576, 1536}, {16, 2}, {48, 50}}) {
    const at::Tensor weight = Random({outputs, inputs}), bias = Random({outputs});
    ASSERT_TRUE(CanPack(weight));
    const at::Tensor packed = PackInPlace(weight.clone());
    for (const int64_t rows : {1, 3, 32, 100}) {
      const at::Tensor input = Random({rows, inputs});
      EXPECT_TRUE(at::equal(Linear(input, packed, bias), Linear(input, weight, bias)));
      EXPECT_TRUE(at::equal(WideProduct(input, packed), WideProduct(input, weight)));
    }
    const at::Tensor indices = at::randint(outputs, {33}, at::kLong);
    EXPECT_TRUE(at::equal(PackedRows(packed, indices), weight.index_select(0, indices)));
  }
}

TEST(Bf16Linear, HasTheSameBitsTogetherAsOneByOne) {
  for (const int64_t rows : {0, 1, 32, 200, 700}) {
    const at::Tensor input = Random({rows, 576}), bias = Random({192});
    std::vector<LinearWeights> together = {
        {Random({576, 576}), {}}, {Random({192, 576}), bias}, {Random({200, 576}), {}}, {Random({32, 576}), {}}};
    std::vector<at::Tensor> expected;
    for (const auto& [weight, bias_N] : together) expected.push_back(Linear(input, weight, bias_N));
    for (const bool packed : {false, true}) {
      if (packed) {
        for (LinearWeights& one : together) one.weight = CanPack(one.weight) ? PackInPlace(one.weight) : one.weight;
      }
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        const std::vector<at::Tensor> found = Linears(input, together);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(at::equal(found[i], expected[i])) << rows << " rows, " << threads << " threads, weight " << i;
        }
      }
    }
  }
  at::set_num_threads(2);
}

TEST(Bf16Linear, HasGradientsOfEachOfSeveral) {
  const at::Tensor input = Random({5, 96}).set_requires_grad(true), other = input.detach().clone();
  other.set_requires_grad(true);
  const at::Tensor a = Random({32, 96}), b = Random({48, 96}), upstream_a = Random({5, 32}),
                   upstream_b = Random({5, 48});
  const std::vector<at::Tensor> both = Linears(input, {{a, {}}, {b, {}}});
  ((both[0] * upstream_a).sum() + (both[1] * upstream_b).sum()).backward();
  ((Linear(other, a, {}) * upstream_a).sum() + (Linear(other, b, {}) * upstream_b).sum()).backward();
  EXPECT_TRUE(at::equal(input.grad(), other.grad()));
}

TEST(Bf16Linear, PacksWhatFillsItsPanels) {
  EXPECT_FALSE(CanPack(Random({17, 8})));
  EXPECT_FALSE(CanPack(Random({16, 7})));
  EXPECT_FALSE(CanPack(Random({16})));
  EXPECT_EQ(CanPack(at::randn({16, 7})), UsesGemm(at::randn({16, 7})));
  EXPECT_FALSE(CanPack(at::randn({16, 8}).to(at::kDouble)));
  EXPECT_THROW(PackedRows(PackInPlace(Random({16, 8})), at::full({1}, 16, at::kLong)), c10::Error);
}

// By whichever library makes them here.
void ExpectWithinRounding(const at::Tensor& found, const at::Tensor& exact, const at::Tensor& magnitude) {
  ASSERT_EQ(found.scalar_type(), at::kFloat);
  ASSERT_EQ(found.sizes(), exact.sizes());
  EXPECT_LE(((found.to(at::kDouble) - exact).abs() / (magnitude * 1e-5 + 1e-30)).max().item<double>(), 1);
}

TEST(Fp32Linear, HasSumsAndGradients) {
  for (const auto& [rows, inputs, outputs] : {std::tuple{1, 577, 80}, {13, 96, 33}, {700, 64, 160}, {300, 1536, 48}}) {
    const at::Tensor upstream = at::randn({rows, outputs});
    std::vector<at::Tensor> ours = {at::randn({rows, inputs}), at::randn({outputs, inputs}), at::randn({outputs})};
    std::vector<at::Tensor> exact, magnitude;
    for (at::Tensor& tensor : ours) {
      tensor.set_requires_grad(true);
      exact.push_back(tensor.detach().to(at::kDouble).set_requires_grad(true));
      magnitude.push_back(tensor.detach().to(at::kDouble).abs().set_requires_grad(true));
    }
    const at::Tensor found = Linear(ours[0], ours[1], ours[2]), expected = at::linear(exact[0], exact[1], exact[2]);
    const at::Tensor sizes = at::linear(magnitude[0], magnitude[1], magnitude[2]);
    ExpectWithinRounding(found, expected, sizes);
    ExpectWithinRounding(WideProduct(ours[0], ours[1]), at::linear(exact[0], exact[1]), sizes);
    found.backward(upstream);
    expected.backward(upstream.to(at::kDouble));
    sizes.backward(upstream.to(at::kDouble).abs());
    for (size_t i = 0; i < ours.size(); ++i) {
      ExpectWithinRounding(ours[i].grad(), exact[i].grad(), magnitude[i].grad());
    }
    at::Tensor sum = at::randn({inputs, outputs});
    const at::Tensor first = sum.to(at::kDouble);
    AddGradientProduct(ours[0].detach().t(), upstream, &sum);
    ExpectWithinRounding(sum, first + at::mm(exact[0].detach().t(), upstream.to(at::kDouble)),
                         first.abs() + at::mm(magnitude[0].detach().t(), upstream.to(at::kDouble).abs()));
  }
}

TEST(Fp32Linear, GivesARowTheSameBitsWhateverIsAroundItAndHoweverTheWeightLies) {
  const at::Tensor weight = at::randn({576, 1536}), bias = at::randn({576}), rows = at::randn({300, 1536});
  if (!UsesGemm(weight)) GTEST_SKIP() << "products of fp32 are LibTorch's on this CPU";
  const at::Tensor packed = PackInPlace(weight.clone()), all = Linear(rows, weight, bias);
  for (const int64_t count : {1, 2, 5, 14, 32, 100}) {
    const at::Tensor some = rows.slice(0, 0, count), expected = all.slice(0, 0, count);
    EXPECT_TRUE(at::equal(Linear(some, weight, bias), expected)) << count;
    EXPECT_TRUE(at::equal(Linear(some, packed, bias), expected)) << count;
    EXPECT_TRUE(at::equal(LinearPlus(some, packed, bias, expected), expected + expected)) << count;
  }
  const at::Tensor indices = at::randint(576, {33}, at::kLong);
  EXPECT_TRUE(at::equal(PackedRows(packed, indices), weight.index_select(0, indices)));
}

TEST(Bf16Linear, TakesNoRows) {
  EXPECT_EQ(WideProduct(Random({0, 8}), Random({4, 8})).sizes(), (std::vector<int64_t>{0, 4}));
}

TEST(Bf16Linear, HasShapesOnTheMetaDevice) {
  const auto meta = at::TensorOptions(at::kBFloat16).device(at::kMeta);
  const at::Tensor product = WideProduct(at::empty({3, 8}, meta), at::empty({4, 8}, meta));
  EXPECT_TRUE(product.is_meta());
  EXPECT_EQ(product.sizes(), (std::vector<int64_t>{3, 4}));
  const at::Tensor packed = PackInPlace(at::empty({32, 8}, meta));
  EXPECT_EQ(Linear(at::empty({3, 8}, meta), packed, at::Tensor()).sizes(), (std::vector<int64_t>{3, 32}));
  EXPECT_EQ(PackedRows(packed, at::empty({5}, at::TensorOptions(at::kLong).device(at::kMeta))).sizes(),
            (std::vector<int64_t>{5, 8}));
}

}  // namespace
}  // namespace quartet
