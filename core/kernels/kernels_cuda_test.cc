// Functions of rows and wide products on a GPU, against the same on the CPU.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/hardware/device.h"
#include "core/kernels/linear.h"
#include "core/kernels/row_functions.h"

namespace quartet {
namespace {

const at::Device kGpu(at::kCUDA, 0);

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status entered = EnterDevice(kGpu);
    if (!entered.ok()) GTEST_SKIP() << entered;
    at::manual_seed(1);
  }
};

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// The result, then the gradient of each input, on the CPU in fp64.
std::vector<at::Tensor> WithGradients(const Function& function, const std::vector<at::Tensor>& inputs,
                                      const at::Tensor& gradient, at::Device device) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().to(device).clone().set_requires_grad(true));
  const at::Tensor out = function(leaves);
  std::vector<at::Tensor> all = torch::autograd::grad({out}, leaves, {gradient.to(device)});
  all.insert(all.begin(), out.detach());
  for (at::Tensor& tensor : all) tensor = tensor.cpu().to(at::kDouble);
  return all;
}

double Difference(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

void ExpectAsOnCpu(const std::string& what, const Function& function, const std::vector<at::Tensor>& inputs,
                   const at::Tensor& gradient) {
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 2e-6}, {at::kBFloat16, 2e-3}}) {
    std::vector<at::Tensor> rounded;
    for (const at::Tensor& input : inputs) rounded.push_back(input.to(type));
    const auto expected = WithGradients(function, rounded, gradient.to(type), at::kCPU);
    const auto found = WithGradients(function, rounded, gradient.to(type), kGpu);
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].sizes(), expected[i].sizes());
      EXPECT_LT(Difference(found[i], expected[i]), tolerance) << what << ", " << type << ", of " << i;
    }
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> there;
    for (const at::Tensor& input : rounded) there.push_back(input.to(kGpu));
    const at::Tensor whole = function(there);
    EXPECT_TRUE(at::equal(whole.cpu().to(at::kDouble), found[0])) << what << ": other bits without gradients";
  }
}

TEST_F(OnGpu, NormsAreThoseOfTheCpu) {
  const auto norm = [](const std::vector<at::Tensor>& in) { return RmsNorm(in[0], in[1], 1e-5); };
  for (const int64_t size : {7, 48, 64, 576, 1024, 1028, 4096, 4097, 13000}) {
    for (const int64_t rows : {1, 3, 700}) {
      ExpectAsOnCpu("norm of " + std::to_string(rows) + " x " + std::to_string(size), norm,
                    {at::randn({rows, size}), at::randn({size})}, at::randn({rows, size}));
    }
  }
  ExpectAsOnCpu("heads", norm, {at::randn({90, 5, 128}), at::randn({128})}, at::randn({90, 5, 128}));
}

TEST_F(OnGpu, RotationsAreThoseOfTheCpu) {
  for (const int64_t d : {8, 64, 80, 128}) {
    const at::Tensor angles = at::randn({33, d / 2}).repeat({1, 2});
    const auto turn = [&](const std::vector<at::Tensor>& in) {
      return Rotate(in[0], {.cos_Td = angles.cos().to(in[0].device()), .sin_Td = angles.sin().to(in[0].device())});
    };
    ExpectAsOnCpu("rotation of " + std::to_string(d), turn, {at::randn({33, 3, d})}, at::randn({33, 3, d}));
  }
}

TEST_F(OnGpu, GatesAreThoseOfTheCpu) {
  const auto gate = [](const std::vector<at::Tensor>& in) { return SwiGlu(in[0], in[1]); };
  for (const int64_t size : {5, 1536}) {
    ExpectAsOnCpu("gate of " + std::to_string(size), gate, {at::randn({77, size}) * 20, at::randn({77, size})},
                  at::randn({77, size}));
  }
}

TEST_F(OnGpu, ARowsBitsDoNotDependOnTheOthers) {
  for (const int64_t size : {576, 4096}) {
    const at::Tensor x = at::randn({300, size}, kGpu).to(at::kBFloat16), weight = x[0].clone();
    const at::Tensor all = RmsNorm(x, weight, 1e-5);
    EXPECT_TRUE(at::equal(RmsNorm(x.slice(0, 17, 18), weight, 1e-5), all.slice(0, 17, 18)));
  }
}

TEST_F(OnGpu, ProductsOfBf16ComeOutInFp32) {
  const at::Tensor a = at::randn({70, 300}).to(at::kBFloat16), b = at::randn({300, 1000}).to(at::kBFloat16);
  const at::Tensor expected = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
  const at::Tensor there = a.to(kGpu), weight = b.t().contiguous().to(kGpu);
  const at::Tensor wide = WideProduct(there, weight);
  ASSERT_EQ(wide.scalar_type(), at::kFloat);
  EXPECT_LT(Difference(wide.cpu().to(at::kDouble), expected), 1e-6);
  at::Tensor sum = at::matmul(a.to(at::kFloat), b.to(at::kFloat)).to(kGpu);
  WideProductInto(a.t().contiguous().to(kGpu).t(), b.to(kGpu), /*adds=*/true, &sum);
  EXPECT_LT(Difference(sum.cpu().to(at::kDouble), 2 * expected), 1e-6);
}

}  // namespace
}  // namespace quartet
