#include "policy_trainer/policy_checks.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rl/options/policy_losses.h"

namespace quartet {

absl::Status CheckPolicyUpdate(const PolicyUpdateHeader& header, const std::vector<TrainingSequence>& sequences,
                               const SequenceLimits& limits) {
  QUARTET_RETURN_IF_ERROR(CheckTemperature(header.temperature()));
  QUARTET_RETURN_IF_ERROR(CheckLearningRate(header.learning_rate()));
  const PolicyLossConfig& loss = header.loss();
  if (const absl::Status status = CheckPolicyLoss(loss); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("header.loss.", status.message()));
  }
  QUARTET_RETURN_IF_ERROR(CheckTrainingSequences(sequences, ArraysOf(loss), limits));
  return TraitsOf(loss.kind()).is_of_pairs ? CheckPairs(sequences, /*has_margin=*/false) : absl::OkStatus();
}

}  // namespace quartet
