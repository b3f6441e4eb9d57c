// Rewards by rules: functions of an answer and its label.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/rewards/reward.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Of a source with its defaults filled in. INVALID_ARGUMENT names a rule that there is not, or a pattern that is none.
// Its Score gives INVALID_ARGUMENT, naming the label, for one that the rule cannot read. An answer on which the pattern
// takes too much time or memory is worth 0; the extra log "over_budget" is 1 then.
absl::StatusOr<std::unique_ptr<RewardFunction>> NewRule(const RewardSource& source);

}  // namespace quartet
