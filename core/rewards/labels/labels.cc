#include "core/rewards/labels/labels.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/services.h"
#include "core/errors/shown.h"
#include "core/rewards/programs/code.h"
#include "core/rewards/rules/rules.h"

namespace quartet {

bool IsFor(const RewardSource& source, const std::string& prompt_source) {
  return source.only().empty() || std::ranges::find(source.only(), prompt_source) != source.only().end();
}

bool GivesTokenRewards(const RewardConfig& config) {
  return std::ranges::any_of(config.source(), [](const RewardSource& source) { return source.token_rewards(); });
}

bool AnyAdds(const RewardConfig& config, const std::string& prompt_source) {
  return std::ranges::any_of(config.source(), [&](const RewardSource& source) {
    return !source.gate() && source.weight() != 0 && IsFor(source, prompt_source);
  });
}

absl::Status CheckAnyIsFor(const RunConfig& config, const std::string& prompt_source) {
  const auto judges = [&](const RewardSource& source) { return !source.gate() && IsFor(source, prompt_source); };
  const auto& sources = config.reward().source();
  if (HasAgent(config) || sources.empty() || std::ranges::any_of(sources, judges)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the prompt is from ", Quoted(prompt_source),
      " (data.source_key), and every reward.source that is no gate is for others alone (reward.source.only); one of "
      "weight 0 (reward.source.weight) would judge its answers without a reward"));
}

absl::StatusOr<LabelReader> LabelReader::Create(const RunConfig& config) {
  LabelReader reader;
  reader.config_ = config;
  for (int i = 0; i < config.reward().source_size(); ++i) {
    Source& source = reader.sources_.emplace_back(Source{config.reward().source(i), nullptr});
    if (!source.options.code().empty()) source.function = NewCode({});
    if (source.options.rule().empty()) continue;
    QUARTET_ASSIGN_OR_RETURN(source.function,
                             Prefixed(absl::StrCat("reward.source[", i, "]"), NewRule(source.options)));
  }
  return reader;
}

absl::Status LabelReader::Check(const std::string& label, const std::string& prompt_source) const {
  Answer answer;  // an empty one: labels are read whatever it is, and it has no program to run
  answer.label = label;
  const Answer* const answers[] = {&answer};
  for (const Source& source : sources_) {
    if (!IsFor(source.options, prompt_source)) continue;
    if (source.function == nullptr) continue;
    const absl::Status status = source.function->Score(answers, {}).at(0).status();
    if (absl::IsInvalidArgument(status)) return status;
  }
  return CheckAnyIsFor(config_, prompt_source);
}

}  // namespace quartet
