#include "orchestrator/data/reward_sources.h"

#include <algorithm>

namespace quartet {

bool Verifies(const RewardSource& source) {
  if (!source.code().empty()) return true;
  const std::string& rule = source.rule();
  return !rule.empty() && rule != "format" && rule != "finished" && rule != "length";
}

bool NeedsLabels(const RewardConfig& reward) {
  return std::any_of(reward.source().begin(), reward.source().end(), Verifies);
}

bool ReadsJsonLabels(const RewardConfig& reward) {
  return ReadsPrompts(reward) ||
         std::any_of(reward.source().begin(), reward.source().end(), [](const RewardSource& source) {
           return !source.code().empty() || source.rule() == "json_field";
         });
}

bool ReadsPrompts(const RewardConfig& reward) {
  return std::any_of(reward.source().begin(), reward.source().end(), [](const RewardSource& source) {
    return !source.remote_url().empty() || !source.command().empty();
  });
}

}  // namespace quartet
