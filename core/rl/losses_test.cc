// Against the peers' own functions (tools/golden/rl_losses.py), and cases worked out by hand.
#include "core/rl/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/rl/aggregation.h"
#include "core/rl/testing/golden_comparison.h"
#include "core/rl/testing/golden_tensor.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

template <typename T>
std::vector<T> Values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return std::vector<T>(flat.const_data_ptr<T>(), flat.const_data_ptr<T>() + flat.numel());
}

template <typename T>
class LossGoldens : public testing::Test {
 protected:
  LossGoldens() { std::ifstream("core/rl/testdata/losses.json") >> golden_; }

  const json& Data(const json& golden) const { return golden_["data"][std::string(golden["data"])]; }
  at::Tensor Array(const json& golden, const std::string& name) const { return GoldenTensor<T>(Data(golden)[name]); }
  // Of every token of an optimizer step of these sequences, aggregated as the case says.
  at::Tensor Weights(const json& golden) const {
    const std::vector<int64_t> lengths = Data(golden)["lengths"];
    std::vector<AggregatedSequence> sequences;
    for (size_t i = 0; i < lengths.size(); ++i) sequences.push_back({lengths[i], Data(golden)["excluded"][i]});
    const double constant = golden["data"] == "ragged" ? 9 : 6;  // longest sequence; TRL: max_completion_length
    const std::vector<T> weights =
        LossWeights<T>(sequences, *ParseLossAggregation(golden["aggregation"].get<std::string>()), constant);
    std::vector<double> of_tokens;
    for (size_t i = 0; i < lengths.size(); ++i) of_tokens.insert(of_tokens.end(), lengths[i], weights[i]);
    return GoldenTensor<T>(of_tokens);
  }

  json golden_;
};
TYPED_TEST_SUITE(LossGoldens, GoldenPrecisions);

template <typename T>
void ExpectLoss(const at::Tensor& loss, const at::Tensor& leaf, const json& golden, const std::string& function) {
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_EQ(loss.scalar_type(), leaf.scalar_type());
  loss.backward();
  ExpectGolden<T>(Values<T>(loss), std::vector{golden["loss"].get<double>()}, function, golden["peer"],
                  /*scale=*/0.1);
  ExpectGolden<T>(Values<T>(leaf.grad()), golden["gradient"].get<std::vector<double>>(), function, golden["peer"]);
}

PolicyLossOptions OptionsOf(const json& golden) {
  PolicyLossOptions options;
  options.kind = FindPolicyLoss(golden.value("kind", "ppo"))->kind;
  options.eps_clip_low = golden.value("eps_clip_low", 0.2);
  options.eps_clip_high = golden.value("eps_clip_high", 0.2);
  options.dual_clip = golden.value("dual_clip", 0.0);
  if (golden.contains("correction")) {
    const json& correction = golden["correction"];
    options.correction = {.mode = *ParseCorrectionMode(correction["mode"].get<std::string>()),
                          .gate = *ParseCorrectionGate(correction.value("gate", "ratio")),
                          .low = correction["low"],
                          .high = correction["high"]};
  }
  options.kl_coefficient = golden.value("kl_coefficient", 0.0);
  options.kl_estimator = *ParseKlEstimator(golden.value("kl_estimator", "k3"));
  options.kl_clamp = *ParseKlClamp(golden.value("kl_clamp", "all"));
  options.kl_gradient = *ParseKlGradient(golden.value("kl_gradient", "estimator"));
  options.entropy_coefficient = golden.value("entropy_coefficient", 0.0);
  return options;
}

// What the case is about, for the table.
std::string FunctionOf(const json& options) {
  if (options.contains("correction")) {
    return "correction, " + options["correction"]["mode"].get<std::string>() + ", " +
           options["correction"].value("gate", "ratio");
  }
  if (options.contains("kl_coefficient")) return "KL in the loss, " + options["kl_gradient"].get<std::string>();
  return "loss, " + options.value("kind", "ppo");
}

TYPED_TEST(LossGoldens, PolicyLossesAreThoseOfEveryPeer) {
  ASSERT_EQ(this->golden_["policy"].size(), 107);
  for (const json& golden : this->golden_["policy"]) {
    SCOPED_TRACE(golden["peer"].dump() + golden["options"].dump() + golden["aggregation"].dump());
    const PolicyLossOptions options = OptionsOf(golden["options"]);
    ASSERT_TRUE(CheckPolicyLossOptions(options).ok()) << CheckPolicyLossOptions(options);
    const at::Tensor log_prob = this->Array(golden, "log_prob").set_requires_grad(true);
    const at::Tensor entropy = this->Array(golden, "entropy").set_requires_grad(true);
    const bool row = golden["options"].contains("row_advantage");
    const PolicyLossResult result = PolicyLoss(
        options, {.log_prob_A = log_prob,
                  .weight_A = this->Weights(golden),
                  .advantage_A = this->Array(golden, row ? "row_advantage" : "advantage"),
                  .old_log_prob_A = this->Array(golden, golden["options"].value("old_log_prob", "old_log_prob")),
                  .rollout_log_prob_A = this->Array(golden, "rollout_log_prob"),
                  .reference_log_prob_A = this->Array(golden, "reference_log_prob"),
                  .entropy_A = entropy,
                  .sequence_lengths = this->Data(golden)["lengths"]});
    const std::string function = FunctionOf(golden["options"]);
    ExpectLoss<TypeParam>(result.loss, log_prob, golden, function);
    if (golden.contains("entropy_gradient")) {
      ExpectGolden<TypeParam>(Values<TypeParam>(entropy.grad()), golden["entropy_gradient"].get<std::vector<double>>(),
                              "entropy bonus", golden["peer"]);
    }
    for (const auto& [name, ours] : std::initializer_list<std::pair<const char*, double>>{
             {"clipped", result.clipped},
             {"approx_kl_sum", result.approx_kl_sum},
             {"kl_sum", result.kl_sum},
             {"entropy_sum", result.entropy_sum},
             {"masked", result.masked},
             {"truncated", result.truncated},
             {"correction_sum", result.correction_sum},
             {"correction_square_sum", result.correction_square_sum}}) {
      if (!golden.contains(name)) continue;
      ExpectGolden<TypeParam>(std::vector{static_cast<TypeParam>(ours)}, std::vector<double>{golden[name]},
                              "counts and sums", golden["peer"]);
    }
  }
}

TYPED_TEST(LossGoldens, ValueLossesAreThoseOfEveryPeer) {
  ASSERT_EQ(this->golden_["value"].size(), 10);
  for (const json& golden : this->golden_["value"]) {
    SCOPED_TRACE(golden["peer"].dump() + golden["options"].dump());
    const at::Tensor value = this->Array(golden, "value").set_requires_grad(true);
    const ValueLossResult result =
        ClippedValueLoss(value, this->Array(golden, "old_value"), this->Array(golden, "returns"), this->Weights(golden),
                         golden["options"]["value_clip"]);
    ExpectLoss<TypeParam>(result.loss, value, golden, "loss, value");
    EXPECT_EQ(result.tokens, 20);
    if (golden.contains("clipped")) {
      EXPECT_EQ(std::round(golden["clipped"].get<double>()), result.clipped);
    }
  }
}

at::Tensor Fp32(const std::vector<double>& values) { return GoldenTensor<float>(values); }

TEST(PolicyLoss, OfAnUnchangedPolicyIsMinusTheAdvantage) {
  const at::Tensor log_prob = Fp32({-1, -2}).set_requires_grad(true);
  const PolicyLossResult result = PolicyLoss({}, {.log_prob_A = log_prob,
                                                  .weight_A = Fp32({0.5, 0.5}),
                                                  .advantage_A = Fp32({3, -5}),
                                                  .old_log_prob_A = Fp32({-1, -2})});
  EXPECT_FLOAT_EQ(result.loss.item<float>(), 1);  // -(3 - 5) / 2
  EXPECT_EQ(result.tokens, 2);
  EXPECT_EQ(result.clipped, 0);
  EXPECT_EQ(result.approx_kl_sum, 0);
  result.loss.backward();
  EXPECT_FLOAT_EQ(log_prob.grad()[0].item<float>(), -1.5);
  EXPECT_FLOAT_EQ(log_prob.grad()[1].item<float>(), 2.5);
}

TEST(PolicyLoss, CountsOnlyTokensThatAreInTheLoss) {
  const PolicyLossResult result =
      PolicyLoss({.correction = {.mode = CorrectionMode::kTokenMask, .low = 0.5, .high = 2}},
                 {.log_prob_A = Fp32({-1, -1, -1}),
                  .weight_A = Fp32({1, 1, 0}),
                  .advantage_A = Fp32({1, 1, 1}),
                  .old_log_prob_A = Fp32({-2, -1, -2}),
                  .rollout_log_prob_A = Fp32({-5, -1, -9}),
                  .entropy_A = Fp32({3, 4, 5})});
  EXPECT_EQ(result.tokens, 2);
  EXPECT_EQ(result.clipped, 1);
  EXPECT_EQ(result.approx_kl_sum, -1);
  EXPECT_EQ(result.entropy_sum, 7);
  EXPECT_EQ(result.masked, 1);
  EXPECT_EQ(result.truncated, 0);
  EXPECT_EQ(result.correction_sum, 1);
  EXPECT_EQ(result.correction_square_sum, 1);
}

// Whether sequences share a micro-batch makes no difference to the sum.
TEST(PolicyLoss, OfSequencesIsTheSameInOneMicroBatchAndInTwo) {
  const auto part = [](int64_t begin, int64_t end, std::vector<int64_t> lengths) {
    const auto cut = [&](const std::vector<double>& v) { return Fp32(v).narrow(0, begin, end - begin); };
    return PolicyLoss(
               {.kind = PolicyLossKind::kGspo, .correction = {.mode = CorrectionMode::kSequenceTruncate, .high = 1.1}},
               {.log_prob_A = cut({-1, -2, -0.5, -3, -1}),
                .weight_A = Fp32(std::vector<double>(5, 0.2)).narrow(0, begin, end - begin),
                .advantage_A = cut({1, 1, 1, -2, -2}),
                .old_log_prob_A = cut({-1.1, -2, -0.4, -3.3, -1}),
                .rollout_log_prob_A = cut({-1, -2, -0.7, -3, -1.2}),
                .sequence_lengths = std::move(lengths)})
        .loss.item<float>();
  };
  EXPECT_FLOAT_EQ(part(0, 5, {3, 0, 2}), part(0, 3, {3}) + part(3, 5, {2}));
}

TEST(PolicyLoss, StaysFiniteWhateverTheRatios) {
  constexpr double kFar = 1e4;
  for (const char* kind : {"ppo", "gspo", "gspo_token", "sequence_ppo", "cispo", "reinforce"}) {
    for (const char* mode :
         {"token_truncate", "token_mask", "sequence_mask_geometric", "sequence_mask_product", "sequence_truncate"}) {
      for (const char* gradient : {"estimator", "k2", "importance", "times_ratio"}) {
        SCOPED_TRACE(std::string(kind) + " " + mode + " " + gradient);
        const at::Tensor log_prob = Fp32({-kFar, -0.1, -kFar, -0.1}).set_requires_grad(true);
        const PolicyLossResult result =
            PolicyLoss({.kind = FindPolicyLoss(kind)->kind,
                        .correction = {.mode = *ParseCorrectionMode(mode), .low = 0.5, .high = 2},
                        .kl_coefficient = 1,
                        .kl_gradient = *ParseKlGradient(gradient)},
                       {.log_prob_A = log_prob,
                        .weight_A = Fp32({1, 1, 1, 1}),
                        .advantage_A = Fp32({1, 1, -1, -1}),
                        .old_log_prob_A = Fp32({-0.1, -kFar, -0.1, -kFar}),
                        .rollout_log_prob_A = Fp32({-kFar, -0.1, -0.1, -kFar}),
                        .reference_log_prob_A = Fp32({-0.1, -kFar, -kFar, -0.1}),
                        .sequence_lengths = {1, 1, 2}});
        result.loss.backward();
        EXPECT_TRUE(std::isfinite(result.loss.item<float>()));
        EXPECT_TRUE(log_prob.grad().isfinite().all().item<bool>()) << log_prob.grad();
      }
    }
  }
}

TEST(PolicyLoss, OfNoTokensIsZero) {
  const at::Tensor none = Fp32({});
  for (const char* kind : {"sft", "ppo", "gspo", "gspo_token", "sequence_ppo", "cispo", "reinforce"}) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, std::vector<int64_t>{0, 0}}) {
      const PolicyLossResult result = PolicyLoss({.kind = FindPolicyLoss(kind)->kind}, {.log_prob_A = none,
                                                                                        .weight_A = none,
                                                                                        .advantage_A = none,
                                                                                        .old_log_prob_A = none,
                                                                                        .sequence_lengths = lengths});
      EXPECT_EQ(result.loss.item<float>(), 0) << kind;
      EXPECT_EQ(result.tokens, 0);
    }
  }
  EXPECT_EQ(SftLoss(none, none).item<float>(), 0);
  EXPECT_EQ(ClippedValueLoss(none, none, none, none, 0.2).loss.item<float>(), 0);
}

// As a plan of memory runs it.
TEST(PolicyLoss, RunsWhereTensorsHaveNoData) {
  const auto meta = [] { return at::empty({4}, at::TensorOptions().device(at::kMeta).dtype(at::kFloat)); };
  for (const char* kind : {"sft", "ppo", "gspo", "gspo_token", "sequence_ppo", "cispo", "reinforce"}) {
    for (const char* gate : {"ratio", "binary_kl", "tv"}) {
      SCOPED_TRACE(kind);
      const bool sft = std::string(kind) == "sft";
      const at::Tensor log_prob = meta().set_requires_grad(true);
      const PolicyLossResult result =
          PolicyLoss({.kind = FindPolicyLoss(kind)->kind,
                      .dual_clip = 3,
                      .correction = {.mode = sft ? CorrectionMode::kOff : CorrectionMode::kSequenceMaskGeometric,
                                     .gate = *ParseCorrectionGate(gate)},
                      .kl_coefficient = sft ? 0.0 : 1.0,
                      .kl_gradient = KlGradient::kImportance,
                      .entropy_coefficient = 1},
                     {.log_prob_A = log_prob,
                      .weight_A = meta(),
                      .advantage_A = meta(),
                      .old_log_prob_A = meta(),
                      .rollout_log_prob_A = meta(),
                      .reference_log_prob_A = meta(),
                      .entropy_A = meta(),
                      .sequence_lengths = {3, 1}});
      EXPECT_EQ(result.tokens, 0);
      result.loss.backward();
      EXPECT_EQ(log_prob.grad().sizes(), log_prob.sizes());
    }
  }
  EXPECT_EQ(ClippedValueLoss(meta(), meta(), meta(), meta(), 0.2).clipped, 0);
}

TEST(PolicyLossOptions, ThatAreOutOfRangeOrHaveNoEffectAreRefused) {
  const auto sft = PolicyLossKind::kSft;
  const auto truncate = CorrectionMode::kTokenTruncate, mask = CorrectionMode::kTokenMask;
  for (const PolicyLossOptions& options : {
           PolicyLossOptions{.eps_clip_low = 1.5},
           PolicyLossOptions{.eps_clip_high = -0.1},
           PolicyLossOptions{.dual_clip = 1},
           PolicyLossOptions{.kind = PolicyLossKind::kCispo, .dual_clip = 3},
           PolicyLossOptions{.kl_coefficient = -1},
           PolicyLossOptions{.kind = sft, .kl_coefficient = 1},
           PolicyLossOptions{.entropy_coefficient = std::numeric_limits<double>::infinity()},
           PolicyLossOptions{.kind = sft, .correction = {.mode = truncate, .high = 2}},
           PolicyLossOptions{.correction = {.mode = truncate, .low = 2, .high = 2}},
           PolicyLossOptions{.correction = {.mode = truncate, .gate = CorrectionGate::kBinaryKl, .high = 2}},
           PolicyLossOptions{.correction = {.mode = mask, .gate = CorrectionGate::kBinaryKl, .low = 1, .high = 2}},
       }) {
    EXPECT_FALSE(CheckPolicyLossOptions(options).ok());
  }
  EXPECT_TRUE(CheckPolicyLossOptions({}).ok());
  EXPECT_TRUE(CheckPolicyLossOptions({.kind = sft}).ok());
}

TEST(OptionNames, ThatAreUnknownAreAnsweredWithThoseThatAreAllowed) {
  EXPECT_EQ(FindPolicyLoss("dpo"), nullptr);
  EXPECT_THAT(std::string(ParseCorrectionMode("tis").status().message()), HasSubstr("off, token_truncate"));
  EXPECT_THAT(std::string(ParseCorrectionGate("kl").status().message()), HasSubstr("ratio, binary_kl, tv"));
  EXPECT_THAT(std::string(ParseKlGradient("").status().message()), HasSubstr("estimator, k2"));
}

}  // namespace
}  // namespace quartet
