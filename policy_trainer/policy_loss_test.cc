// However a batch is cut into micro-batches and ranks, the policy's gradient is the same: what is left in fp32 is
// rounding, and in fp64 hardly that.
#include "policy_trainer/policy_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "core/training/testing/whole_gradient.h"

namespace quartet {
namespace {

struct Precision {
  at::ScalarType type;
  double tolerance;
  double of_turns;  // tolerance of conversations that are cut into turns
};

class PolicyLossTest : public ::testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Precisions, PolicyLossTest,
                         ::testing::Values(Precision{at::kFloat, 1e-5, 1e-6}, Precision{at::kDouble, 1e-12, 1e-12}));

TrainableModelOptions Options() {
  TrainableModelOptions options;
  options.model.compute_dtype = PolicyLossTest::GetParam().type;
  return options;
}

MicroBatchLoss LossOf(const PolicyUpdateHeader& header) {
  return [&header, sums = std::make_shared<UpdateSums>()](const std::vector<const TrainingSequence*>& part,
                                                          const PackedBatch& batch, const at::Tensor& hidden_TD,
                                                          const at::Tensor& head_VD) {
    return MicroBatchPolicyLoss(header, part, batch, hidden_TD, head_VD, sums.get());
  };
}

void ExpectInvariance(const std::string& folder, const PolicyUpdateHeader& header) {
  ExpectGradientDoesNotDependOnTheCut(folder, Options(), RandomTrainingSequences(14, 101, 7),
                                      PolicyLossTest::GetParam().tolerance, [&] { return LossOf(header); });
}

TEST_P(PolicyLossTest, HasTheSameGradientHoweverTheBatchIsCut) {
  PolicyUpdateHeader header;
  header.set_temperature(0.9f);
  header.mutable_loss()->set_kind(PolicyLossConfig::KIND_PPO);
  header.mutable_loss()->set_eps_clip_low(0.2f);
  header.mutable_loss()->set_eps_clip_high(0.28f);
  header.mutable_loss()->set_dual_clip(3);
  ExpectInvariance("core/model/testdata/llama", header);
}

// A ratio and a correction of whole sequences, and terms beside the surrogate.
TEST_P(PolicyLossTest, HasTheSameGradientWithRatiosOfSequencesEntropyAndKl) {
  PolicyUpdateHeader header;
  header.set_temperature(0.9f);
  header.set_entropy_after_temperature(true);
  PolicyLossConfig* loss = header.mutable_loss();
  loss->set_kind(PolicyLossConfig::KIND_GSPO);
  loss->set_eps_clip_low(0.2f);
  loss->set_eps_clip_high(0.28f);
  loss->set_entropy_coef(0.01f);
  loss->set_kl_coef(0.1f);
  loss->set_kl_estimator("k3");
  loss->set_correction_mode("sequence_mask_geometric");
  loss->set_correction_low(0.5);
  loss->set_correction_high(2);
  ExpectInvariance("core/model/testdata/llama", header);
}

// Ratios of tokens far from 1, a correction of them, entropy and KL: all that is of single tokens.
TEST_P(PolicyLossTest, HasTheSameGradientWhereAConversationIsASequenceATurn) {
  PolicyUpdateHeader header;
  header.set_temperature(0.9f);
  PolicyLossConfig* loss = header.mutable_loss();
  loss->set_kind(PolicyLossConfig::KIND_PPO);
  loss->set_eps_clip_low(0.2f);
  loss->set_eps_clip_high(0.28f);
  loss->set_entropy_coef(0.01f);
  loss->set_kl_coef(0.1f);
  loss->set_kl_estimator("k3");
  loss->set_correction_mode("token_truncate");
  loss->set_correction_high(2);
  ExpectGradientDoesNotDependOnTurns("core/model/testdata/llama", Options(), RandomConversations(14, 101, 9),
                                     /*scales_advantages=*/false, GetParam().of_turns, [&] { return LossOf(header); });
}

// A ratio of a sequence is one of a turn then, 1 under the weights that generated.
TEST_P(PolicyLossTest, HasTheSameGradientWhereAConversationIsASequenceATurnWithRatiosOfSequences) {
  for (const auto kind :
       {PolicyLossConfig::KIND_GSPO, PolicyLossConfig::KIND_GSPO_TOKEN, PolicyLossConfig::KIND_SEQUENCE_PPO}) {
    PolicyUpdateHeader header;
    header.set_temperature(0.9f);
    header.mutable_loss()->set_kind(kind);
    header.mutable_loss()->set_eps_clip_low(0.2f);
    header.mutable_loss()->set_eps_clip_high(0.28f);
    header.mutable_loss()->set_own_old_log_probs(true);
    const bool scales_advantages = kind == PolicyLossConfig::KIND_SEQUENCE_PPO;  // which are sent in fp32
    const double tolerance = scales_advantages ? std::max(1e-7, GetParam().of_turns) : GetParam().of_turns;
    ExpectGradientDoesNotDependOnTurns("core/model/testdata/llama", Options(), RandomConversations(14, 101, 9),
                                       scales_advantages, tolerance, [&] { return LossOf(header); });
  }
}

// The embedding's rows and the head's are one parameter, with two gradients.
TEST_P(PolicyLossTest, HasTheSameGradientWithTiedEmbeddingsAndASupervisedLoss) {
  PolicyUpdateHeader header;
  header.set_temperature(1);
  header.mutable_loss()->set_kind(PolicyLossConfig::KIND_SFT);
  ExpectInvariance("core/model/testdata/llama_tied_llama3_rope", header);
}

}  // namespace
}  // namespace quartet
