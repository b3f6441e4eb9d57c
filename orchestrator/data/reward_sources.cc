#include "orchestrator/data/reward_sources.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/data/record.h"
#include "core/errors/shown.h"

namespace quartet {

bool Verifies(const RewardSource& source) {
  if (!source.code().empty()) return true;
  const std::string& rule = source.rule();
  return !rule.empty() && rule != "format" && rule != "finished" && rule != "length";
}

bool NeedsLabels(const RewardConfig& reward) {
  return std::any_of(reward.source().begin(), reward.source().end(),
                     [](const RewardSource& source) { return Verifies(source) && source.only().empty(); });
}

absl::Status CheckOnly(const RewardConfig& reward, const std::set<std::string>& sources) {
  for (int i = 0; i < reward.source_size(); ++i) {
    for (const std::string& name : reward.source(i).only()) {
      if (sources.contains(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat("reward.source[", i, "].only is ", Quoted(name),
                                                     ", and no prompt is from there (data.source_key); "
                                                     "prompts are from: ",
                                                     JoinNames({sources.begin(), sources.end()})));
    }
  }
  return absl::OkStatus();
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
