#include "core/rewards/token_rewards.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet {

absl::Status SetTokenRewards(const Answer& answer, std::vector<float> token_rewards, std::optional<float> said,
                             Reward* reward) {
  constexpr double kRounding = 1e-4;  // of what a program adds up in fp32, or writes with few digits
  if (static_cast<int64_t>(token_rewards.size()) != answer.tokens) {
    return absl::InternalError(absl::StrCat("\"token_rewards\" has ", token_rewards.size(),
                                            " numbers, and the answer has ", answer.tokens,
                                            " tokens (\"token_ids\"): there must be one for each"));
  }
  double sum = 0, size = 0;
  for (const float value : token_rewards) {
    sum += value;
    size += std::abs(value);
  }
  reward->value = static_cast<float>(sum);
  if (!std::isfinite(reward->value)) {
    return absl::InternalError(absl::StrCat("\"token_rewards\" add up to ", sum, ", which is beyond fp32"));
  }
  if (said.has_value() && std::abs(*said - sum) > kRounding * size) {
    return absl::InternalError(absl::StrCat("\"reward\" is ", *said, ", and \"token_rewards\" add up to ", sum,
                                            ": leave \"reward\" out, or put what is missing on a token, such as the "
                                            "last one"));
  }
  reward->token_rewards = std::move(token_rewards);
  return absl::OkStatus();
}

absl::Status UnexpectedTokenRewards() {
  return absl::InternalError(
      "there are \"token_rewards\", and reward.source.token_rewards is false: set it, so that the program is told the "
      "tokens and the run is checked to use them");
}

}  // namespace quartet
