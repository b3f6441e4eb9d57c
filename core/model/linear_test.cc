#include "core/model/linear.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "core/model/bf16_gemm.h"

namespace quartet {
namespace {

at::Tensor Random(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }

// Runs on the CPU's own products; elsewhere there is nothing of ours to be tested.
class Bf16Linear : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasBf16Gemm()) GTEST_SKIP() << "this CPU has no avx512_bf16";
  }
};

TEST_F(Bf16Linear, HasWideSumsOfExactProducts) {
  for (const auto& [rows, inputs, outputs] : {std::tuple{1, 576, 192}, {7, 577, 1001}, {300, 64, 48}}) {
    const at::Tensor input = Random({rows, inputs}), weight = Random({outputs, inputs});
    const at::Tensor product = WideBf16Product(input, weight);
    EXPECT_EQ(product.scalar_type(), at::kFloat);
    const at::Tensor exact = at::mm(input.to(at::kDouble), weight.to(at::kDouble).t());
    const at::Tensor magnitude = at::mm(input.to(at::kDouble).abs(), weight.to(at::kDouble).abs().t());
    EXPECT_LE(((product - exact).abs() / magnitude).max().item<double>(), inputs * 0x1p-24 * 1.001);
  }
}

TEST_F(Bf16Linear, HasTheSameBitsWithAnyNumberOfThreads) {
  const at::Tensor weight = Random({1000, 576});
  for (const int64_t rows : {1, 32, 257}) {
    const at::Tensor input = Random({rows, 576});
    at::set_num_threads(1);
    const at::Tensor one = WideBf16Product(input, weight);
    for (const int threads : {2, 3, 40}) {  // 40: more than there are columns for
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(WideBf16Product(input, weight), one)) << rows << " rows, " << threads << " threads";
    }
  }
  at::set_num_threads(2);
}

TEST_F(Bf16Linear, TakesNoRows) {
  EXPECT_EQ(WideBf16Product(Random({0, 8}), Random({4, 8})).sizes(), (std::vector<int64_t>{0, 4}));
}

TEST_F(Bf16Linear, HasShapesOnTheMetaDevice) {
  const auto meta = at::TensorOptions(at::kBFloat16).device(at::kMeta);
  const at::Tensor product = WideBf16Product(at::empty({3, 8}, meta), at::empty({4, 8}, meta));
  EXPECT_TRUE(product.is_meta());
  EXPECT_EQ(product.sizes(), (std::vector<int64_t>{3, 4}));
}

}  // namespace
}  // namespace quartet
