#include "core/tokenizer/pipeline/pattern.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "core/tokenizer/pipeline/step.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet {

using nlohmann::json;

MatchFinder FindAll(Regex regex) {
  return [regex = std::make_shared<const Regex>(std::move(regex))](const std::string& text, RegexBudget* budget) {
    return regex->FindAll(text, budget);
  };
}

absl::StatusOr<Pattern> ReadPattern(const json& step) {
  const auto pattern = step.find("pattern");
  if (pattern != step.end() && pattern->is_object() && pattern->size() == 1 && pattern->begin()->is_string()) {
    const auto& text = pattern->begin()->get_ref<const std::string&>();
    if (pattern->begin().key() == "String") return Pattern{.literal = text, .regex = {}};
    if (pattern->begin().key() == "Regex") return Pattern{.literal = {}, .regex = text};
  }
  return StepError(step, "\"pattern\" is neither {\"String\": ...} nor {\"Regex\": ...}");
}

absl::StatusOr<MatchFinder> FindPattern(const json& step) {
  QUARTET_ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(step));
  if (pattern.literal.has_value()) {
    return MatchFinder(
        [literal = *pattern.literal](const std::string& text, RegexBudget*) { return FindLiteral(text, literal); });
  }
  auto regex = Regex::Compile(*pattern.regex);
  if (!regex.ok()) return StepError(step, std::string(regex.status().message()));
  return FindAll(*std::move(regex));
}

std::string ReplaceMatches(const std::string& text, const std::vector<TextRange>& matches, const std::string& content) {
  std::string replaced;
  size_t at = 0;
  for (const auto& [begin, end] : matches) {
    replaced.append(text, at, begin - at).append(content);
    at = end;
  }
  return replaced.append(text, at);
}

std::string ReplaceLiteral(const std::string& text, const std::string& literal, const std::string& content) {
  return ReplaceMatches(text, FindLiteral(text, literal), content);
}

}  // namespace quartet
