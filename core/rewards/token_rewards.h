// Rewards of single tokens (reward.source.token_rewards), whichever way they come.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/rewards/reward.h"

namespace quartet {

// Makes `reward` one of `answer`'s tokens: its value is their sum. `said` is the value that the source has given beside
// them, if any. INTERNAL: they are not as many as the answer's tokens, the sum is beyond fp32, or `said` is another
// number, by more than a ten-thousandth of what was added.
absl::Status SetTokenRewards(const Answer& answer, std::vector<float> token_rewards, std::optional<float> said,
                             Reward* reward);

// INTERNAL: they have come where they were not asked for.
absl::Status UnexpectedTokenRewards();

}  // namespace quartet
