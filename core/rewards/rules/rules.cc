#include "core/rewards/rules/rules.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/rewards/boxed.h"
#include "core/rewards/extract.h"
#include "core/rewards/math/equality.h"
#include "core/rewards/math/text/answer.h"
#include "core/rewards/math/text/around.h"
#include "core/rewards/reply_json.h"
#include "core/rewards/rules/choice.h"
#include "core/rewards/rules/number.h"
#include "core/tokenizer/unicode/regex.h"

namespace quartet {
namespace {

using nlohmann::json;
using Rule = std::function<absl::StatusOr<Reward>(const Answer&)>;

class RuleFunction final : public RewardFunction {
 public:
  explicit RuleFunction(Rule rule) : rule_(std::move(rule)) {}
  std::vector<absl::StatusOr<Reward>> Score(std::span<const Answer* const> answers, std::stop_token) override {
    std::vector<absl::StatusOr<Reward>> rewards;
    for (const Answer* answer : answers) rewards.push_back(rule_(*answer));
    return rewards;
  }

 private:
  const Rule rule_;
};

// A rule that tells a value alone.
template <typename Value>
Rule Plain(Value value_of) {
  return [value_of = std::move(value_of)](const Answer& answer) -> absl::StatusOr<Reward> {
    const absl::StatusOr<float> value = value_of(answer);
    if (!value.ok()) return value.status();
    return Reward{*value};
  };
}

absl::Status BadLabel(const Answer& answer, std::string_view rule, std::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("label ", Quoted(answer.label), " is no ", std::string(wanted),
                                                 ", which rule \"", std::string(rule), "\" needs"));
}

absl::StatusOr<float> Number(const Answer& answer) { return NumberMatch(answer.response, answer.label); }

absl::StatusOr<float> Boxed(const Answer& answer) {
  const std::string_view label = StripSpace(LastBoxed(answer.label).value_or(answer.label));
  if (label.empty()) return BadLabel(answer, "boxed", "text");
  const std::optional<std::string_view> given = LastBoxed(answer.response);
  return given.has_value() && StripSpace(*given) == label ? 1.0f : 0.0f;
}

// With how many of the answers could not be told from the label.
Reward RewardOf(math::Truth same) {
  Reward reward;
  reward.value = same == math::Truth::kYes ? 1 : 0;
  reward.extra_logs["undecided"] = same == math::Truth::kUnknown ? 1 : 0;
  return reward;
}

absl::StatusOr<Reward> Math(const Answer& answer) {
  const std::string label = math::AnswerOfLabel(answer.label);
  if (label.empty()) return BadLabel(answer, "math", "answer");
  return RewardOf(math::Compare(label, math::AnswerIn(answer.response)));
}

absl::StatusOr<Reward> OpenReasonerZero(const Answer& answer) {
  const std::string label = math::AnswerOfLabel(answer.label);
  if (label.empty()) return BadLabel(answer, "open_reasoner_zero", "answer");
  if (answer.truncated) return RewardOf(math::Truth::kNo);
  const std::optional<std::string_view> said = LastTag(answer.response, "answer");
  const std::optional<std::string_view> boxed = said.has_value() ? LastBoxed(*said) : std::nullopt;
  if (!boxed.has_value()) return RewardOf(math::Truth::kNo);
  const std::optional<std::string> factor = math::FactorAround(*said, *boxed, *boxed);
  if (!factor.has_value()) return RewardOf(math::Truth::kUnknown);
  return RewardOf(math::Compare(label, absl::StrCat(std::string(*boxed), *factor)));
}

absl::StatusOr<float> Choice(const Answer& answer, const RewardSource& source) {
  const std::string& choices = source.choices();
  const std::optional<char> right = ChosenLetter(answer.label, choices);
  if (!right.has_value()) return BadLabel(answer, "choice", absl::StrCat("letter out of \"", choices, "\""));
  return ChosenLetter(answer.response, choices) == right ? 1.0f : 0.0f;
}

// Values that JSON has: equal as such, or as numbers (whole ones exactly), or a text that is the label as it is.
absl::StatusOr<float> JsonField(const Answer& answer, const RewardSource& source) {
  if (StripSpace(answer.label).empty()) return BadLabel(answer, "json_field", "text");
  const std::optional<json> object = LastJsonObject(answer.response);
  const json* given = object.has_value() ? AtPath(*object, source.field()) : nullptr;
  if (given == nullptr) return 0.0f;
  const absl::StatusOr<json> label = ParseExactJson(answer.label, "the label");
  if (label.ok() && *given == *label) return 1.0f;
  return given->is_string() && StripSpace(given->get_ref<const std::string&>()) == StripSpace(answer.label) ? 1.0f
                                                                                                            : 0.0f;
}

// Of what a pattern found: with how many of the answers it took too much time or memory on, which is their own doing.
template <typename Place>
Reward RewardOfSearch(const absl::StatusOr<Place>& found, bool right) {
  Reward reward;
  reward.value = right ? 1 : 0;
  reward.extra_logs["over_budget"] = found.ok() ? 0 : 1;
  return reward;
}

absl::StatusOr<Reward> Found(const Answer& answer, const Regex& pattern) {
  if (StripSpace(answer.label).empty()) return BadLabel(answer, "regex", "text");
  RegexBudget budget(answer.response.size());
  const auto found = pattern.FindLast(answer.response, &budget);
  const bool any = found.ok() && found->has_value();
  const std::string_view text =
      any ? std::string_view(answer.response).substr((*found)->first, (*found)->second - (*found)->first) : "";
  return RewardOfSearch(found, any && StripSpace(text) == StripSpace(answer.label));
}

absl::StatusOr<Reward> Formatted(const Answer& answer, const Regex& whole) {
  RegexBudget budget(answer.response.size());
  const auto found = whole.FindAll(answer.response, &budget);
  return RewardOfSearch(found, found.ok() && !found->empty());
}

absl::StatusOr<float> ExactlyLabel(const Answer& answer) {
  if (StripSpace(answer.label).empty()) return BadLabel(answer, "exact_match", "text");
  return ExactMatch(answer.response, answer.label);
}

absl::StatusOr<float> Finished(const Answer& answer) { return answer.truncated ? 0.0f : 1.0f; }

absl::StatusOr<float> Length(const Answer& answer, const RewardSource& source) {
  const int64_t away =
      std::max({int64_t{0}, source.min_len() - answer.tokens, answer.tokens - int64_t{source.max_len()}});
  return -std::min(1.0f, static_cast<float>(away) / static_cast<float>(std::max(1, source.len_buffer())));
}

// A rule that is told the source's options with each answer.
template <absl::StatusOr<float> (*value_of)(const Answer&, const RewardSource&)>
absl::StatusOr<Rule> WithOptions(const RewardSource& source) {
  return Plain([source](const Answer& answer) { return value_of(answer, source); });
}

template <absl::StatusOr<float> (*value_of)(const Answer&)>
absl::StatusOr<Rule> OfValue(const RewardSource&) {
  return Plain(value_of);
}

template <absl::StatusOr<Reward> (*reward_of)(const Answer&)>
absl::StatusOr<Rule> OfReward(const RewardSource&) {
  return reward_of;
}

absl::StatusOr<Rule> NewRegex(const RewardSource& source) {
  QUARTET_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(source.pattern()));
  const auto shared = std::make_shared<const Regex>(std::move(pattern));
  return [shared](const Answer& answer) { return Found(answer, *shared); };
}

absl::StatusOr<Rule> NewFormat(const RewardSource& source) {
  // By itself first, so that its error does not show what is put around it.
  QUARTET_RETURN_IF_ERROR(Regex::Compile(source.pattern()).status());
  QUARTET_ASSIGN_OR_RETURN(Regex whole, Regex::Compile(absl::StrCat("\\A(?:", source.pattern(), ")\\z")));
  const auto shared = std::make_shared<const Regex>(std::move(whole));
  return [shared](const Answer& answer) { return Formatted(answer, *shared); };
}

constexpr struct {
  std::string_view name;
  absl::StatusOr<Rule> (*make)(const RewardSource& source);
} kRules[] = {
    {"exact_match", &OfValue<ExactlyLabel>},
    {"number", &OfValue<Number>},
    {"boxed", &OfValue<Boxed>},
    {"math", &OfReward<Math>},
    {"open_reasoner_zero", &OfReward<OpenReasonerZero>},
    {"choice", &WithOptions<Choice>},
    {"json_field", &WithOptions<JsonField>},
    {"regex", &NewRegex},
    {"format", &NewFormat},
    {"finished", &OfValue<Finished>},
    {"length", &WithOptions<Length>},
};

}  // namespace

absl::StatusOr<std::unique_ptr<RewardFunction>> NewRule(const RewardSource& source) {
  for (const auto& known : kRules) {
    if (known.name != source.rule()) continue;
    QUARTET_ASSIGN_OR_RETURN(Rule rule, known.make(source));
    return std::make_unique<RuleFunction>(std::move(rule));
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no rule \"", source.rule(), "\""));
}

}  // namespace quartet
