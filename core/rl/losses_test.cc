// Against tools/golden/make_loss_golden.py, and by hand.
#include "core/rl/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quartet {
namespace {

using nlohmann::json;

at::Tensor Fp32(const std::vector<double>& values) { return at::tensor(values).to(at::kFloat); }

class Losses : public testing::Test {
 protected:
  Losses() { std::ifstream("core/rl/testdata/losses.json") >> golden_; }
  at::Tensor Array(const std::string& name) const { return Fp32(golden_.at(name).get<std::vector<double>>()); }
  at::Tensor Leaf(const std::string& name) const { return Array(name).set_requires_grad(true); }
  json golden_;
};

// fp32 against float64.
void ExpectClose(double ours, double theirs) { EXPECT_NEAR(ours, theirs, 1e-5 * std::max(1.0, std::abs(theirs))); }

// Loss and gradient in `leaf` are those of the golden case.
void ExpectGolden(const at::Tensor& loss, const at::Tensor& leaf, const json& golden) {
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(loss.dim(), 0);
  const double theirs = golden.at("loss");
  EXPECT_NEAR(loss.item<double>(), theirs, 2e-6 * std::abs(theirs));
  loss.backward();
  const std::vector<double> gradient = golden.at("gradient");
  ASSERT_EQ(leaf.grad().numel(), gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double ours = leaf.grad()[i].item<double>();
    EXPECT_NEAR(ours, gradient[i], 1e-5 * std::abs(gradient[i])) << "token " << i;
  }
}

TEST_F(Losses, OfSupervisedFineTuningAreTheNegativeLogProbabilities) {
  const at::Tensor log_prob = Leaf("log_prob");
  ExpectGolden(SftLoss(log_prob, Array("weight")), log_prob, golden_.at("sft"));
}

TEST_F(Losses, OfThePolicyAreClippedAsPublished) {
  ASSERT_EQ(golden_.at("policy").size(), 5);
  for (const json& golden : golden_.at("policy")) {
    SCOPED_TRACE(golden.at("low").dump() + " " + golden.at("high").dump() + " " + golden.at("dual").dump());
    const at::Tensor log_prob = Leaf("log_prob");
    const PolicyLossResult result = ClippedPolicyLoss(
        log_prob, Array("old_log_prob"), Array("advantage"), Array("weight"),
        {.eps_clip_low = golden.at("low"), .eps_clip_high = golden.at("high"), .dual_clip = golden.at("dual")});
    ExpectGolden(result.loss, log_prob, golden);
    EXPECT_EQ(result.clipped, golden.at("clipped").get<double>());
    ExpectClose(result.approx_kl_sum, golden.at("approx_kl_sum"));
  }
}

TEST_F(Losses, OfTheCriticAreClippedAsPublished) {
  ASSERT_EQ(golden_.at("values").size(), 3);
  for (const json& golden : golden_.at("values")) {
    SCOPED_TRACE(golden.at("clip").dump());
    const at::Tensor value = Leaf("value");
    const ValueLossResult result =
        ClippedValueLoss(value, Array("old_value"), Array("return"), Array("weight"), golden.at("clip"));
    ExpectGolden(result.loss, value, golden);
    EXPECT_EQ(result.clipped, golden.at("clipped").get<double>());
    ExpectClose(result.value_sum, golden.at("value_sum"));
  }
}

TEST(PolicyLoss, OfAnUnchangedPolicyIsMinusTheAdvantage) {
  const at::Tensor log_prob = Fp32({-1, -2}).set_requires_grad(true);
  const PolicyLossResult result = ClippedPolicyLoss(log_prob, Fp32({-1, -2}), Fp32({3, -5}), Fp32({0.5, 0.5}), {});
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 1);  // -(3 - 5) / 2
  EXPECT_EQ(result.clipped, 0);
  EXPECT_EQ(result.approx_kl_sum, 0);
  result.loss.backward();
  EXPECT_FLOAT_EQ(log_prob.grad()[0].item<float>(), -1.5);
  EXPECT_FLOAT_EQ(log_prob.grad()[1].item<float>(), 2.5);
}

// The hand cases of aggregation: weights carry the normaliser, sums do the rest, however the tokens are cut.
TEST(LossWeights, MakeTokenMeansOfUnevenMicroBatches) {
  const double weight = 1.0 / 7;
  const float first = SftLoss(Fp32({-1, -2}), Fp32({weight, weight})).item<float>();
  const float second = SftLoss(Fp32({-3, -4, -5, -6, -7}), Fp32(std::vector<double>(5, weight))).item<float>();
  EXPECT_FLOAT_EQ(first + second, 4.0);  // not the mean of means, 3.25
}

TEST(LossWeights, MakeSequenceMeans) {
  const double sixth = 1.0 / 6, third = 1.0 / 3;
  EXPECT_FLOAT_EQ(SftLoss(Fp32({-1, -3, -2, -4, -8}), Fp32({sixth, sixth, sixth, sixth, third})).item<float>(),
                  13.0 / 3);
}

TEST(LossesOfNoTokens, AreZero) {
  const at::Tensor none = Fp32({});
  EXPECT_EQ(SftLoss(none, none).item<float>(), 0);
  EXPECT_EQ(ClippedPolicyLoss(none, none, none, none, {}).loss.item<float>(), 0);
  EXPECT_EQ(ClippedValueLoss(none, none, none, none, 0.2).loss.item<float>(), 0);
}

}  // namespace
}  // namespace quartet
