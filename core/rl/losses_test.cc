// Against the peers' own functions (tools/golden/rl_losses.py), and cases worked out by hand.
#include "core/rl/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
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

// PPO's with a clip range of 0.2, and what `fields`, in text format, say over it.
PolicyLossConfig Loss(const std::string& fields = "") {
  PolicyLossConfig loss;
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString("kind: KIND_PPO eps_clip_low: 0.2 eps_clip_high: 0.2", &loss));
  google::protobuf::TextFormat::Parser parser;
  EXPECT_TRUE(parser.MergeFromString(fields, &loss)) << fields;
  return loss;
}
PolicyLossConfig LossOfKind(const std::string& name) {
  PolicyLossConfig loss = Loss();
  loss.set_kind(FindPolicyLoss(name)->kind);
  return loss;
}

PolicyLossConfig LossOf(const json& golden) {
  PolicyLossConfig loss = LossOfKind(golden.value("kind", "ppo"));
  loss.set_eps_clip_low(golden.value("eps_clip_low", 0.2));
  loss.set_eps_clip_high(golden.value("eps_clip_high", 0.2));
  loss.set_dual_clip(golden.value("dual_clip", 0.0));
  if (golden.contains("correction")) {
    const json& correction = golden["correction"];
    loss.set_correction_mode(correction["mode"].get<std::string>());
    loss.set_correction_gating(correction.value("gate", "ratio"));
    loss.set_correction_low(correction["low"]);
    loss.set_correction_high(correction["high"]);
  }
  loss.set_kl_coef(golden.value("kl_coefficient", 0.0));
  loss.set_kl_estimator(golden.value("kl_estimator", "k3"));
  loss.set_kl_clamp(golden.value("kl_clamp", "all"));
  loss.set_kl_gradient(golden.value("kl_gradient", "estimator"));
  loss.set_entropy_coef(golden.value("entropy_coefficient", 0.0));
  return loss;
}

// The names of the losses of tokens.
std::vector<std::string> LossesOfTokens() {
  std::vector<std::string> names;
  for (const PolicyLossTraits& traits : PolicyLosses()) {
    if (!traits.is_of_pairs) names.emplace_back(traits.name);
  }
  return names;
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
    const PolicyLossConfig loss = LossOf(golden["options"]);
    ASSERT_TRUE(CheckPolicyLoss(loss).ok()) << CheckPolicyLoss(loss);
    const at::Tensor log_prob = this->Array(golden, "log_prob").set_requires_grad(true);
    const at::Tensor entropy = this->Array(golden, "entropy").set_requires_grad(true);
    const bool row = golden["options"].contains("row_advantage");
    const PolicyLossResult result = PolicyLoss(
        loss, {.log_prob_A = log_prob,
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
  const PolicyLossResult result = PolicyLoss(Loss(), {.log_prob_A = log_prob,
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
      PolicyLoss(Loss("correction_mode: 'token_mask' correction_low: 0.5 correction_high: 2"),
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
    return PolicyLoss(Loss("kind: KIND_GSPO correction_mode: 'sequence_truncate' correction_high: 1.1"),
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
  for (const std::string& kind : LossesOfTokens()) {
    if (kind == "sft") continue;  // it has no ratios
    for (const char* mode :
         {"token_truncate", "token_mask", "sequence_mask_geometric", "sequence_mask_product", "sequence_truncate"}) {
      for (const char* gradient : {"estimator", "k2", "importance", "times_ratio"}) {
        SCOPED_TRACE(kind + " " + mode + " " + gradient);
        PolicyLossConfig loss = LossOfKind(kind);
        loss.set_correction_mode(mode);
        loss.set_correction_low(0.5);
        loss.set_correction_high(2);
        loss.set_kl_coef(1);
        loss.set_kl_gradient(gradient);
        const at::Tensor log_prob = Fp32({-kFar, -0.1, -kFar, -0.1}).set_requires_grad(true);
        const PolicyLossResult result = PolicyLoss(loss, {.log_prob_A = log_prob,
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
  for (const std::string& kind : LossesOfTokens()) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, std::vector<int64_t>{0, 0}}) {
      const PolicyLossResult result = PolicyLoss(LossOfKind(kind), {.log_prob_A = none,
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
  for (const std::string& kind : LossesOfTokens()) {
    for (const char* gate : {"ratio", "binary_kl", "tv"}) {
      SCOPED_TRACE(kind);
      PolicyLossConfig loss = LossOfKind(kind);
      loss.set_dual_clip(3);
      loss.set_entropy_coef(1);
      if (kind != "sft") {
        loss.set_correction_mode("sequence_mask_geometric");
        loss.set_correction_gating(gate);
        loss.set_kl_coef(1);
        loss.set_kl_gradient("importance");
      }
      const at::Tensor log_prob = meta().set_requires_grad(true);
      const PolicyLossResult result = PolicyLoss(loss, {.log_prob_A = log_prob,
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

TEST(CheckPolicyLoss, RefusesWhatIsOutOfRangeOrHasNoEffectByItsField) {
  for (const auto& [fields, refusal] : std::initializer_list<std::pair<const char*, const char*>>{
           {"eps_clip_low: 1.5", "eps_clip_low is 1.5"},
           {"eps_clip_high: -0.1", "eps_clip_high -0.1"},
           {"dual_clip: 1", "dual_clip is 1"},
           {"kind: KIND_CISPO dual_clip: 3", "dual_clip is 3, which has no effect with loss \"cispo\""},
           {"kl_coef: -1", "kl_coef is -1"},
           {"kind: KIND_SFT kl_coef: 1", "kl_coef is 1; supervised fine-tuning has no KL"},
           {"entropy_coef: inf", "entropy_coef is inf"},
           {"kind: KIND_SFT correction_mode: 'token_truncate' correction_high: 2",
            "correction_mode is \"token_truncate\""},
           {"correction_mode: 'token_truncate' correction_low: 2 correction_high: 2", "correction_low is 2"},
           {"correction_mode: 'token_truncate' correction_gating: 'tv' correction_high: 2",
            "correction_gating is \"tv\""},
           {"correction_mode: 'token_mask' correction_gating: 'tv' correction_low: 1 correction_high: 2",
            "correction_low is 1; a divergence"},
           {"correction_mode: 'tis'", "correction_mode: importance correction \"tis\" is not known"},
           {"beta: 0.1", "beta is 0.1"},
           {"kind: KIND_UNSPECIFIED", "kind is 0; it must be 1 to "},
       }) {
    const absl::Status status = CheckPolicyLoss(Loss(fields));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << fields;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal));
  }
  EXPECT_TRUE(CheckPolicyLoss(Loss()).ok());
  EXPECT_TRUE(CheckPolicyLoss(Loss("kind: KIND_SFT")).ok());
}

TEST(PolicyLoss, ReadsTheArraysThatItsTermsNeed) {
  using ::testing::ElementsAre;
  EXPECT_THAT(ArraysOf(Loss("kind: KIND_SFT")), ElementsAre("loss_weights"));
  EXPECT_THAT(ArraysOf(Loss("kind: KIND_REINFORCE")), ElementsAre("loss_weights", "advantages"));
  EXPECT_THAT(ArraysOf(Loss()), ElementsAre("loss_weights", "advantages", "old_log_probs"));
  EXPECT_THAT(ArraysOf(Loss("own_old_log_probs: true")), ElementsAre("loss_weights", "advantages"));
  EXPECT_THAT(ArraysOf(Loss("kind: KIND_REINFORCE kl_coef: 1 kl_gradient: 'k2'")),
              ElementsAre("loss_weights", "advantages", "reference_log_probs"));
  EXPECT_THAT(ArraysOf(Loss("kind: KIND_REINFORCE kl_coef: 1 kl_gradient: 'importance'")),
              ElementsAre("loss_weights", "advantages", "old_log_probs", "reference_log_probs"));
  EXPECT_THAT(ArraysOf(Loss("kind: KIND_REINFORCE correction_mode: 'token_mask' correction_high: 2")),
              ElementsAre("loss_weights", "advantages", "old_log_probs", "rollout_log_probs"));
  EXPECT_THAT(ArraysOf(Loss("kind: KIND_DPO")), ElementsAre("loss_weights", "reference_log_probs"));
}

TEST(OptionNames, ThatAreUnknownAreAnsweredWithThoseThatAreAllowed) {
  EXPECT_EQ(FindPolicyLoss("trpo"), nullptr);
  EXPECT_THAT(std::string(ParseCorrectionMode("tis").status().message()), HasSubstr("off, token_truncate"));
  EXPECT_THAT(std::string(ParseCorrectionGate("kl").status().message()), HasSubstr("ratio, binary_kl, tv"));
  EXPECT_THAT(std::string(ParseKlGradient("").status().message()), HasSubstr("estimator, k2"));
}

}  // namespace
}  // namespace quartet
