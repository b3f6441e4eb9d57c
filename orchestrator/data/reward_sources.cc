#include "orchestrator/data/reward_sources.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/record.h"
#include "core/errors/shown.h"
#include "core/rewards/labels/labels.h"

namespace quartet {
namespace {

bool IsToldPrompts(const RewardSource& source) { return !source.remote_url().empty() || !source.command().empty(); }

}  // namespace

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

absl::Status CheckReasoningDelimiters(const RewardConfig& reward, const Tokenizer& tokenizer) {
  for (int i = 0; i < reward.source_size(); ++i) {
    const std::string& delimiter = reward.source(i).reasoning_delimiter();
    if (delimiter.empty()) continue;
    QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(delimiter, /*add_special_tokens=*/false));
    for (const int32_t id : ids) {
      const std::string token = tokenizer.Decode({id}, /*skip_special_tokens=*/false);
      if (tokenizer.Decode({id}, /*skip_special_tokens=*/true) == token) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("reward.source[", i, "].reasoning_delimiter is ", Quoted(delimiter), ", and ", Quoted(token),
                       " is a special token of the tokenizer's; answers are read without those, so that all would be "
                       "worth 0. A text that the model writes as other tokens is allowed"));
    }
  }
  return absl::OkStatus();
}

bool TakesJsonLabels(const RewardConfig& reward, const std::string& prompt_source) {
  const auto any = [&](const auto& does) {
    return std::ranges::any_of(
        reward.source(), [&](const RewardSource& source) { return IsFor(source, prompt_source) && does(source); });
  };
  return !any(Verifies) || any([](const RewardSource& source) {
    return !source.code().empty() || source.rule() == "json_field" || IsToldPrompts(source);
  });
}

bool ReadsPrompts(const RewardConfig& reward) { return std::ranges::any_of(reward.source(), IsToldPrompts); }

}  // namespace quartet
