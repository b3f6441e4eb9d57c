#include "policy_trainer/policy_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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
    sequence.add_loss_weights(1);
    sequence.add_old_log_probs(-1);
    sequence.add_advantages(2);
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
  sequences_[0].clear_advantages();
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: advantages has 0 entries for 1 action tokens"));
  header_.mutable_loss()->set_kind(PolicyLossConfig::KIND_SFT);
  sequences_[0].clear_old_log_probs();
  EXPECT_EQ(Refusal(), "");
}

TEST_F(PolicyChecksTest, WantsWhatTermsBesideTheSurrogateNeed) {
  header_.mutable_loss()->set_kl_coef(0.1f);
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: reference_log_probs has 0 entries for 1 action tokens"));
  sequences_[0].add_reference_log_probs(-1);
  EXPECT_EQ(Refusal(), "");
  header_.mutable_loss()->set_correction_mode("token_mask");
  header_.mutable_loss()->set_correction_high(2);
  EXPECT_THAT(Refusal(), HasSubstr("rollout_log_probs has 0 entries"));
  sequences_[0].add_rollout_log_probs(-1);
  EXPECT_EQ(Refusal(), "");
  header_.mutable_loss()->set_correction_gating("entropy");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("header.loss.correction_gating: "), HasSubstr("\"entropy\"")));
}

TEST_F(PolicyChecksTest, WantsOfALossOfPairsWhatItNeedsAndNothingElse) {
  header_.mutable_loss()->set_kind(PolicyLossConfig::KIND_DPO);
  header_.mutable_loss()->set_beta(0.1f);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("eps_clip_low"), HasSubstr("KIND_DPO has beta and label_smoothing alone")));
  header_.mutable_loss()->clear_eps_clip_low();
  header_.mutable_loss()->clear_eps_clip_high();
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: reference_log_probs has 0 entries for 1 action tokens"));
  sequences_[0].add_reference_log_probs(-1);
  EXPECT_THAT(Refusal(), HasSubstr("header.num_items is 1"));
  sequences_.push_back(sequences_[0]);
  sequences_[1].mutable_tokens()->set_index(10);
  EXPECT_THAT(Refusal(), HasSubstr("sequence 9: pair is not set"));
  sequences_[0].mutable_pair()->set_weight(1);
  EXPECT_EQ(Refusal(), "");
  header_.mutable_loss()->set_beta(0);
  EXPECT_THAT(Refusal(), HasSubstr("header.loss: beta is 0"));
  header_.mutable_loss()->set_kind(PolicyLossConfig::KIND_SFT);
  header_.mutable_loss()->set_label_smoothing(0.25f);
  EXPECT_THAT(Refusal(), HasSubstr("label_smoothing 0.25; a loss that is not of pairs has neither"));
}

TEST_F(PolicyChecksTest, RefusesALossThatIsNotSetOrHasSenselessBounds) {
  header_.mutable_loss()->set_dual_clip(0.5);
  EXPECT_THAT(Refusal(), HasSubstr("header.loss: dual clip 0.5"));
  header_.mutable_loss()->set_dual_clip(3);
  EXPECT_EQ(Refusal(), "");
  header_.mutable_loss()->set_eps_clip_high(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(Refusal(), HasSubstr("header.loss: the ratio's clip range is 0.2 and nan"));
  header_.clear_loss();
  EXPECT_THAT(Refusal(), HasSubstr("header.loss.kind is 0"));
}

}  // namespace
}  // namespace quartet
