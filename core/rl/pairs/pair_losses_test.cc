// Against TRL's own source lines (tools/golden/make_preference_golden.py), and cases worked out by hand.
#include "core/rl/pairs/pair_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/rl/testing/golden_comparison.h"
#include "core/rl/testing/golden_tensor.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

template <typename T>
void ExpectValues(const at::Tensor& ours, const json& theirs, const std::string& function, double scale = 0) {
  const at::Tensor flat = ours.detach().contiguous();
  const std::vector<double> expected =
      theirs.is_array() ? theirs.get<std::vector<double>>() : std::vector<double>{theirs.get<double>()};
  ExpectGolden<T>(std::span(flat.const_data_ptr<T>(), flat.numel()), expected, function, "TRL", scale);
}

PolicyLossConfig PreferenceOf(const std::string& name, double beta, double label_smoothing) {
  PolicyLossConfig loss;
  loss.set_kind(FindPolicyLoss(name)->kind);
  loss.set_beta(beta);
  loss.set_label_smoothing(label_smoothing);
  return loss;
}

template <typename T>
class PairLossGoldens : public testing::Test {
 protected:
  PairLossGoldens() { std::ifstream("core/rl/testdata/pair_losses.json") >> golden_; }
  // A mean over pairs.
  static at::Tensor Mean(int64_t pairs) {
    return GoldenTensor<T>(std::vector<double>(pairs, 1.0 / static_cast<double>(pairs)));
  }
  json golden_;
};
TYPED_TEST_SUITE(PairLossGoldens, GoldenPrecisions);

TYPED_TEST(PairLossGoldens, PreferenceLossesAndTheirGradientsAreTrls) {
  for (const json& golden : this->golden_["preference"]) {
    const bool ipo = golden["loss_type"] == "ipo";
    const std::vector<int64_t> lengths = golden["lengths"];
    std::vector<double> weights;
    for (int64_t n : lengths) weights.insert(weights.end(), n, ipo ? 1.0 / static_cast<double>(n) : 1.0);
    const at::Tensor leaf = GoldenTensor<TypeParam>(golden["log_prob"]).requires_grad_();
    const PairLossResult result =
        PreferenceLoss(PreferenceOf(ipo ? "ipo" : "dpo", golden["beta"], golden["label_smoothing"]),
                       {.log_prob_A = leaf,
                        .reference_log_prob_A = GoldenTensor<TypeParam>(golden["reference_log_prob"]),
                        .token_weight_A = GoldenTensor<TypeParam>(weights),
                        .pair_weight_P = this->Mean(static_cast<int64_t>(lengths.size() / 2)),
                        .sequence_lengths = lengths});
    result.loss.backward();
    const std::string name = ipo ? "loss of pairs, IPO" : "loss of pairs, DPO";
    ExpectValues<TypeParam>(result.loss, golden["loss"], name, 1);
    ExpectValues<TypeParam>(leaf.grad(), golden["gradient"], name, 1);
    if (ipo) continue;  // TRL's rewards are of sums there, ours of the means that its loss is of
    EXPECT_EQ(result.preferred, golden["preferred"].get<double>());
    EXPECT_NEAR(result.chosen_rewards, golden["chosen_rewards"].get<double>(), 1e-4);
    EXPECT_NEAR(result.rejected_rewards, golden["rejected_rewards"].get<double>(), 1e-4);
  }
}

TYPED_TEST(PairLossGoldens, APairwiseRewardLossAndItsGradientAreTrls) {
  for (const json& golden : this->golden_["reward"]) {
    const at::Tensor leaf = GoldenTensor<TypeParam>(golden["rewards"]).requires_grad_();
    const PairLossResult result = PairwiseRewardLoss(leaf, GoldenTensor<TypeParam>(golden["margins"]),
                                                     this->Mean(static_cast<int64_t>(golden["margins"].size())));
    result.loss.backward();
    ExpectValues<TypeParam>(result.loss, golden["loss"], "loss of pairs, reward model", 1);
    ExpectValues<TypeParam>(leaf.grad(), golden["gradient"], "loss of pairs, reward model", 1);
    EXPECT_EQ(result.preferred, golden["preferred"].get<double>());
    EXPECT_NEAR(result.chosen_rewards, golden["chosen_rewards"].get<double>(), 1e-4);
    EXPECT_NEAR(result.rejected_rewards, golden["rejected_rewards"].get<double>(), 1e-4);
  }
}

TEST(PairLosses, OfNoPairsAreZeroAndHaveAGradient) {
  const at::Tensor none = at::empty({0}), leaf = at::empty({0}).requires_grad_();
  const PairLossResult preference =
      PreferenceLoss(PreferenceOf("dpo", 0.1, 0),
                     {.log_prob_A = leaf, .reference_log_prob_A = none, .token_weight_A = none, .pair_weight_P = none});
  EXPECT_EQ(preference.loss.item<float>(), 0);
  EXPECT_TRUE(preference.loss.requires_grad());
  const PairLossResult reward = PairwiseRewardLoss(leaf, none, none);
  EXPECT_EQ(reward.loss.item<float>(), 0);
  EXPECT_TRUE(reward.loss.requires_grad());
}

// A difference of 2000 overflows exp in fp32; the loss is then linear in it.
TEST(PairLosses, StayFiniteHoweverFarApartRewardsAre) {
  const at::Tensor leaf = at::tensor({-1000.0f, 1000.0f}).requires_grad_();
  const PairLossResult result = PairwiseRewardLoss(leaf, at::tensor({0.0f}), at::tensor({1.0f}));
  result.loss.backward();
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 2000);
  EXPECT_FLOAT_EQ(leaf.grad()[0].item<float>(), -1);
  EXPECT_EQ(result.preferred, 0);
}

TEST(PairLosses, OfEqualRewardsAreLogTwoAndPreferNeither) {
  const PairLossResult result = PairwiseRewardLoss(at::full({4}, 3.0), at::full({2}, 0.0), at::full({2}, 0.5));
  EXPECT_NEAR(result.loss.item<double>(), std::log(2), 1e-7);
  EXPECT_EQ(result.preferred, 0);
  EXPECT_EQ(result.chosen_rewards, 6);
}

TEST(CheckPolicyLoss, RefusesWhatMakesNoSenseOfPairsByItsField) {
  const auto refusal = [](const PolicyLossConfig& loss) { return std::string(CheckPolicyLoss(loss).message()); };
  EXPECT_EQ(refusal(PreferenceOf("dpo", 0.1, 0)), "");
  EXPECT_THAT(refusal(PreferenceOf("dpo", 0, 0)), HasSubstr("beta is 0; it must be finite and above 0"));
  EXPECT_THAT(refusal(PreferenceOf("dpo", 0.1, 0.5)),
              HasSubstr("label_smoothing is 0.5; it must be at least 0 and below 0.5"));
  EXPECT_THAT(refusal(PreferenceOf("ipo", 0.1, 0.1)), HasSubstr("no effect with IPO"));
  PolicyLossConfig clipped = PreferenceOf("dpo", 0.1, 0);
  clipped.set_eps_clip_low(0.2);
  EXPECT_THAT(refusal(clipped), HasSubstr("kind is KIND_DPO, which has beta and label_smoothing alone"));
}

}  // namespace
}  // namespace quartet
