// The loss that an update asks for, as core/rl has it. LibTorch-free.
#pragma once

#include "absl/status/statusor.h"
#include "core/rl/pairs/pair_loss_options.h"
#include "core/rl/policy_loss_options.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {

// Of a loss of tokens. INVALID_ARGUMENT names the field of `loss`, its value and what is allowed.
absl::StatusOr<PolicyLossOptions> LossOptionsOf(const PolicyLossConfig& loss);

// Whether `loss` is of pairs of sequences; and the options of one that is, with errors as LossOptionsOf's.
bool IsPairLoss(const PolicyLossConfig& loss);
absl::StatusOr<PreferenceLossOptions> PreferenceLossOptionsOf(const PolicyLossConfig& loss);

// Whether old_log_probs are needed.
bool NeedsOldLogProbs(const PolicyLossOptions& loss);

}  // namespace quartet
