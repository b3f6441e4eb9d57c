#include "policy_trainer/policy_checks.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

absl::Status CheckLoss(const PolicyLossConfig& loss) {
  const auto refuse = [](const char* field, auto value, const char* allowed) {
    return absl::InvalidArgumentError(absl::StrCat("header.loss.", field, " is ", value, "; it must be ", allowed));
  };
  switch (loss.kind()) {
    case PolicyLossConfig::KIND_SFT:
      return absl::OkStatus();
    case PolicyLossConfig::KIND_PPO:
      if (!(loss.eps_clip_low() >= 0 && loss.eps_clip_low() <= 1)) {
        return refuse("eps_clip_low", loss.eps_clip_low(), "in [0, 1]");
      }
      if (!(loss.eps_clip_high() >= 0) || !std::isfinite(loss.eps_clip_high())) {
        return refuse("eps_clip_high", loss.eps_clip_high(), "finite and not below 0");
      }
      if (loss.dual_clip() != 0 && !(loss.dual_clip() > 1 && std::isfinite(loss.dual_clip()))) {
        return refuse("dual_clip", loss.dual_clip(), "0 (off), or finite and above 1");
      }
      return absl::OkStatus();
    default:
      return refuse("kind", static_cast<int>(loss.kind()), "KIND_SFT (1) or KIND_PPO (2)");
  }
}

}  // namespace

absl::Status CheckPolicyUpdate(const PolicyUpdateHeader& header, const std::vector<TrainingSequence>& sequences,
                               const SequenceLimits& limits) {
  QUARTET_RETURN_IF_ERROR(CheckTemperature(header.temperature()));
  QUARTET_RETURN_IF_ERROR(CheckLearningRate(header.learning_rate()));
  QUARTET_RETURN_IF_ERROR(CheckLoss(header.loss()));
  const bool ppo = header.loss().kind() == PolicyLossConfig::KIND_PPO;
  return CheckTrainingSequences(sequences,
                                {{"loss_weights", &TrainingSequence::loss_weights},
                                 {"old_log_probs", &TrainingSequence::old_log_probs, ppo},
                                 {"advantages", &TrainingSequence::advantages, ppo}},
                                limits);
}

}  // namespace quartet
