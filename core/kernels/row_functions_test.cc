// Against the same formulas in fp64 by LibTorch's operators and their automatic differentiation.

#include "core/kernels/row_functions.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <tuple>
#include <utility>
#include <vector>

namespace quartet {
namespace {

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// The result, then the gradient of each input.
std::vector<at::Tensor> WithGradients(const Function& function, const std::vector<at::Tensor>& inputs,
                                      const at::Tensor& gradient) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().set_requires_grad(true));
  const at::Tensor out = function(leaves);
  std::vector<at::Tensor> all = torch::autograd::grad({out}, leaves, {gradient});
  all.insert(all.begin(), out.detach());
  return all;
}

std::vector<at::Tensor> In(at::ScalarType type, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> changed;
  for (const at::Tensor& tensor : tensors) changed.push_back(tensor.to(type));
  return changed;
}

// Norm of the difference over the norm.
double Difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (b.numel() == 0) return 0;
  return ((a.to(at::kDouble) - b.to(at::kDouble)).norm() / b.to(at::kDouble).norm()).item<double>();
}

// `inputs` and `gradient` in fp32. In bf16 every result but the exact one is rounded once or twice (to 8 bits).
void ExpectAsInFp64(const Function& function, const std::vector<at::Tensor>& inputs, const at::Tensor& gradient) {
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-6}, {at::kBFloat16, 4e-3}}) {
    const std::vector<at::Tensor> rounded = In(type, inputs);
    const std::vector<at::Tensor> results = WithGradients(function, rounded, gradient.to(type));
    const std::vector<at::Tensor> expected =
        WithGradients(function, In(at::kDouble, rounded), gradient.to(type).to(at::kDouble));
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].scalar_type(), type);
      EXPECT_LT(Difference(results[i], expected[i]), tolerance) << (i == 0 ? "result" : "gradient") << " " << i;
    }
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(function(rounded), results[0])) << "other bits without gradients";
  }
}

at::Tensor Norm(const std::vector<at::Tensor>& in) { return RmsNorm(in[0], in[1], 1e-5); }
at::Tensor Gate(const std::vector<at::Tensor>& in) { return SwiGlu(in[0], in[1]); }

RotaryTable Table(int64_t tokens, int64_t d, at::ScalarType type) {
  const at::Tensor angles = at::outer(at::arange(tokens, at::kDouble), at::arange(1, d / 2 + 1, at::kDouble) / d);
  const at::Tensor both = at::cat({angles, angles}, 1);
  return {.cos_Td = both.cos().to(type), .sin_Td = both.sin().to(type)};
}
at::Tensor Turn(const std::vector<at::Tensor>& in) {
  return Rotate(in[0], Table(in[0].size(0), in[0].size(2), WideType(in[0].scalar_type())));
}

TEST(RmsNorm, IsAsInFp64) {
  at::manual_seed(1);
  for (const auto& [rows, size] : {std::pair{1, 16}, {5, 7}, {130, 576}, {64, 65}, {200, 128}}) {
    ExpectAsInFp64(Norm, {at::randn({rows, size}) * 3, at::randn({size})}, at::randn({rows, size}));
  }
}

TEST(RmsNorm, NormsEachHead) {
  at::manual_seed(2);
  ExpectAsInFp64(Norm, {at::randn({21, 4, 24}), at::randn({24})}, at::randn({21, 4, 24}));
}

TEST(Rotate, IsAsInFp64) {
  at::manual_seed(3);
  for (const auto& [tokens, heads, d] : {std::tuple{1, 1, 2}, {17, 3, 64}, {40, 2, 24}, {3, 2, 128}}) {
    ExpectAsInFp64(Turn, {at::randn({tokens, heads, d})}, at::randn({tokens, heads, d}));
  }
}

TEST(SwiGlu, IsAsInFp64) {
  at::manual_seed(4);
  for (const auto& [tokens, size] : {std::pair{1, 1}, {3, 17}, {70, 1536}}) {
    ExpectAsInFp64(Gate, {at::randn({tokens, size}) * 4, at::randn({tokens, size})}, at::randn({tokens, size}));
  }
}

TEST(SwiGlu, SurvivesLargeValues) {
  const at::Tensor gate = at::arange(-400, 400, 10, at::kFloat), up = at::full({80}, 2.0);
  EXPECT_LT(Difference(SwiGlu(gate, up), at::silu(gate.to(at::kDouble)) * 2), 1e-6);
}

// Roundings fall where LibTorch's operators let them fall; the few that differ come from the last place in fp32.
TEST(RowFunctions, InBf16HaveTheRoundingsOfLibTorchsOperators) {
  at::manual_seed(5);
  const auto share_equal = [](const at::Tensor& a, const at::Tensor& b) {
    return a.eq(b).to(at::kDouble).mean().item<double>();
  };
  const at::Tensor x = at::randn({200, 576}).to(at::kBFloat16), weight = at::randn({576}).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.square().mean(-1, true) + 1e-5);
  EXPECT_GT(share_equal(RmsNorm(x, weight, 1e-5), weight * (wide * scale).to(at::kBFloat16)), 0.999);
  const at::Tensor up = at::randn({200, 576}).to(at::kBFloat16);
  EXPECT_GT(share_equal(SwiGlu(x, up), at::silu(x) * up), 0.999);
}

TEST(RowFunctions, GiveATokenTheSameBitsWhateverIsAroundIt) {
  at::manual_seed(6);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({70, 3, 50}).to(type), weight = at::randn({50}).to(type);
    const RotaryTable table = Table(70, 50, at::kFloat);
    const at::Tensor norm = RmsNorm(x, weight, 1e-5), turned = Rotate(x, table), gated = SwiGlu(x, x);
    for (const auto& [begin, end] : {std::pair{0, 1}, {3, 8}, {69, 70}}) {
      const at::Tensor part = x.slice(0, begin, end);
      const RotaryTable own = {.cos_Td = table.cos_Td.slice(0, begin, end),
                               .sin_Td = table.sin_Td.slice(0, begin, end)};
      EXPECT_TRUE(at::equal(RmsNorm(part, weight, 1e-5), norm.slice(0, begin, end)));
      EXPECT_TRUE(at::equal(Rotate(part, own), turned.slice(0, begin, end)));
      EXPECT_TRUE(at::equal(SwiGlu(part, part), gated.slice(0, begin, end)));
    }
  }
}

TEST(RowFunctions, HaveGradientsOfTheSameBitsForAnyNumberOfThreads) {
  at::manual_seed(7);
  const std::vector<at::Tensor> inputs = In(at::kBFloat16, {at::randn({700, 576}), at::randn({576})});
  const at::Tensor gradient = at::randn({700, 576}).to(at::kBFloat16);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> one = WithGradients(Norm, inputs, gradient);
  at::set_num_threads(3);
  const std::vector<at::Tensor> three = WithGradients(Norm, inputs, gradient);
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << i;
}

TEST(RowFunctions, TakeNoTokensAndTensorsThatAreNotContiguous) {
  at::manual_seed(8);
  EXPECT_EQ(WithGradients(Norm, {at::randn({0, 8}), at::randn({8})}, at::randn({0, 8}))[2].abs().sum().item<double>(),
            0);
  const at::Tensor wide = at::randn({9, 40});
  const at::Tensor part = wide.slice(1, 3, 23), weight = at::randn({20});
  EXPECT_TRUE(at::equal(RmsNorm(part, weight, 1e-5), RmsNorm(part.contiguous(), weight, 1e-5)));
  EXPECT_TRUE(
      at::equal(SwiGlu(part, wide.slice(1, 0, 20)), SwiGlu(part.contiguous(), wide.slice(1, 0, 20).contiguous())));
}

}  // namespace
}  // namespace quartet
