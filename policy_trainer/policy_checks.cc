#include "policy_trainer/policy_checks.h"

#include "core/base/status_macros.h"
#include "policy_trainer/loss_options.h"

namespace quartet {

absl::Status CheckPolicyUpdate(const PolicyUpdateHeader& header, const std::vector<TrainingSequence>& sequences,
                               const SequenceLimits& limits) {
  QUARTET_RETURN_IF_ERROR(CheckTemperature(header.temperature()));
  QUARTET_RETURN_IF_ERROR(CheckLearningRate(header.learning_rate()));
  if (IsPairLoss(header.loss())) {
    QUARTET_RETURN_IF_ERROR(PreferenceLossOptionsOf(header.loss()).status());
    QUARTET_RETURN_IF_ERROR(CheckTrainingSequences(sequences,
                                                   {{"loss_weights", &TrainingSequence::loss_weights},
                                                    {"reference_log_probs", &TrainingSequence::reference_log_probs}},
                                                   limits));
    return CheckPairs(sequences, /*has_margin=*/false);
  }
  QUARTET_ASSIGN_OR_RETURN(const PolicyLossOptions loss, LossOptionsOf(header.loss()));
  return CheckTrainingSequences(
      sequences,
      {{"loss_weights", &TrainingSequence::loss_weights},
       {"old_log_probs", &TrainingSequence::old_log_probs,
        NeedsOldLogProbs(loss) && !header.loss().own_old_log_probs()},
       {"advantages", &TrainingSequence::advantages, loss.kind != PolicyLossKind::kSft},
       {"rollout_log_probs", &TrainingSequence::rollout_log_probs, loss.correction.mode != CorrectionMode::kOff},
       {"reference_log_probs", &TrainingSequence::reference_log_probs, loss.kl_coefficient > 0}},
      limits);
}

}  // namespace quartet
