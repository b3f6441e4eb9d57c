// Rewards by rules: functions of an answer and its label.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "scorer/rewards/reward.h"

namespace quartet {

// As RewardSource of proto/run_config.proto, with its defaults filled in.
struct RuleOptions {
  std::string rule;
  std::string pattern;
  std::string choices = "ABCD";
  std::string field;
  int64_t min_len = 0, max_len = 0, len_buffer = 1;
};

// INVALID_ARGUMENT names a rule that there is not, or a pattern that is none. Its Score gives INVALID_ARGUMENT, naming
// the label, for one that the rule cannot read, and RESOURCE_EXHAUSTED for an answer on which the pattern takes too
// much time or memory.
absl::StatusOr<std::unique_ptr<RewardFunction>> NewRule(const RuleOptions& options);

}  // namespace quartet
