#include "core/config/reward_sources.h"

#include <algorithm>

namespace quartet {
namespace {

// Rules that look at the answer alone.
bool IsTerm(const std::string& rule) { return rule == "format" || rule == "finished" || rule == "length"; }

}  // namespace

const std::vector<std::string>& RewardRules() {
  static const auto* rules =
      new std::vector<std::string>{"exact_match",        "number", "boxed",    "math",  "regex", "choice", "json_field",
                                   "open_reasoner_zero", "format", "finished", "length"};
  return *rules;
}

bool NeedsLabel(const RewardSource& source) {
  return !source.code().empty() || (!source.rule().empty() && !IsTerm(source.rule()));
}

bool JudgesAnswers(const RewardSource& source) { return NeedsLabel(source); }

bool ReadsQueries(const RewardConfig& reward) {
  return std::any_of(reward.source().begin(), reward.source().end(), [](const RewardSource& source) {
    return !source.remote_url().empty() || !source.command().empty();
  });
}

}  // namespace quartet
