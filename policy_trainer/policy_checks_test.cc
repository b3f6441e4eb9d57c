#include "policy_trainer/policy_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/rl/testing/token_arrays.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PolicyChecksTest : public ::testing::Test {
 protected:
  PolicyChecksTest() {
    header_.set_temperature(1);
    header_.set_learning_rate(1e-6);
    header_.mutable_loss()->set_kind(PolicyLossConfig::KIND_PPO);
    header_.mutable_loss()->set_eps_clip_low(0.2);
    header_.mutable_loss()->set_eps_clip_high(0.28);
    TrainingSequence& sequence = sequences_.emplace_back();
    sequence.mutable_tokens()->set_index(9);
    for (int id : {1, 2}) sequence.mutable_tokens()->add_ids(id);
    for (bool action : {false, true}) sequence.mutable_tokens()->add_action_mask(action);
    MutableArray(kLossWeights, &sequence).Add(1);
    MutableArray(kOldLogProbs, &sequence).Add(-1);
    MutableArray(kAdvantages, &sequence).Add(2);
  }
  std::string Refusal() const {
    const absl::Status status = CheckPolicyUpdate(header_, sequences_, {.vocab_size = 3, .max_len = 8});
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  PolicyUpdateHeader header_;
  std::vector<TrainingSequence> sequences_;
};

TEST_F(PolicyChecksTest, AcceptsAnUpdateThatIsInOrder) { EXPECT_EQ(Refusal(), ""); }

TEST_F(PolicyChecksTest, WantsTheArraysThatTheLossNeedsAndNoOthers) {
  ClearArray(kAdvantages, &sequences_[0]);
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: arrays has no \"advantages\", which this loss reads"));
  header_.mutable_loss()->set_kind(PolicyLossConfig::KIND_SFT);
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: arrays has \"old_log_probs\", which this loss does not read; it reads "
                                   "\"loss_weights\""));
  ClearArray(kOldLogProbs, &sequences_[0]);
  EXPECT_EQ(Refusal(), "");
}

TEST_F(PolicyChecksTest, WantsWhatTermsBesideTheSurrogateNeed) {
  header_.mutable_loss()->set_kl_coef(0.1f);
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: arrays has no \"reference_log_probs\""));
  MutableArray(kReferenceLogProbs, &sequences_[0]).Add(-1);
  EXPECT_EQ(Refusal(), "");
  header_.mutable_loss()->set_correction_mode("token_mask");
  header_.mutable_loss()->set_correction_high(2);
  EXPECT_THAT(Refusal(), HasSubstr("arrays has no \"rollout_log_probs\""));
  MutableArray(kRolloutLogProbs, &sequences_[0]).Add(-1);
  EXPECT_EQ(Refusal(), "");
  header_.mutable_loss()->set_correction_gating("entropy");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("header.loss.correction_gating: "), HasSubstr("\"entropy\"")));
}

TEST_F(PolicyChecksTest, WantsOfALossOfPairsWhatItNeedsAndNothingElse) {
  header_.mutable_loss()->set_kind(PolicyLossConfig::KIND_DPO);
  header_.mutable_loss()->set_beta(0.1f);
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("eps_clip_low"), HasSubstr("KIND_DPO, which has beta and label_smoothing alone")));
  header_.mutable_loss()->clear_eps_clip_low();
  header_.mutable_loss()->clear_eps_clip_high();
  ClearArray(kOldLogProbs, &sequences_[0]);
  ClearArray(kAdvantages, &sequences_[0]);
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: arrays has no \"reference_log_probs\""));
  MutableArray(kReferenceLogProbs, &sequences_[0]).Add(-1);
  EXPECT_THAT(Refusal(), HasSubstr("header.num_items is 1"));
  sequences_.push_back(sequences_[0]);
  sequences_[1].mutable_tokens()->set_index(10);
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: pair is not set"));
  sequences_[0].mutable_pair()->set_weight(1);
  EXPECT_EQ(Refusal(), "");
  header_.mutable_loss()->set_beta(0);
  EXPECT_THAT(Refusal(), HasSubstr("header.loss.beta is 0"));
  header_.mutable_loss()->set_kind(PolicyLossConfig::KIND_SFT);
  header_.mutable_loss()->set_label_smoothing(0.25f);
  EXPECT_THAT(Refusal(), HasSubstr("label_smoothing 0.25; a loss that is not of pairs has neither"));
}

TEST_F(PolicyChecksTest, RefusesALossThatIsNotSetOrHasSenselessBounds) {
  header_.mutable_loss()->set_dual_clip(0.5);
  EXPECT_THAT(Refusal(), HasSubstr("header.loss.dual_clip is 0.5"));
  header_.mutable_loss()->set_dual_clip(3);
  EXPECT_EQ(Refusal(), "");
  header_.mutable_loss()->set_eps_clip_high(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(Refusal(), HasSubstr("header.loss.eps_clip_low is 0.2 and eps_clip_high nan"));
  header_.clear_loss();
  EXPECT_THAT(Refusal(), HasSubstr("header.loss.kind is 0"));
}

}  // namespace
}  // namespace quartet
