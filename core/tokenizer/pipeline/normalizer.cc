#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/pipeline/pattern.h"
#include "core/tokenizer/pipeline/pipeline.h"
#include "core/tokenizer/pipeline/step.h"
#include "core/tokenizer/unicode/regex.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet {

absl::StatusOr<Normalizer> MakeNormalizer(const nlohmann::json& step) {
  if (step.is_null()) return Normalizer([](std::string text) { return text; });
  QUARTET_ASSIGN_OR_RETURN(const std::string type, StepType(step));
  if (type == "Sequence") return Chain<Normalizer>(step, "normalizers", &MakeNormalizer);
  constexpr std::pair<std::string_view, NormalForm> kForms[] = {
      {"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) return Normalizer([form = form](const std::string& text) { return Normalize(text, form); });
  }
  if (type == "Lowercase") return Normalizer([](const std::string& text) { return Lowercase(text); });
  if (type == "Prepend") {
    QUARTET_ASSIGN_OR_RETURN(const std::string prefix, StepText(step, "prepend"));
    return Normalizer([prefix](const std::string& text) { return text.empty() ? text : prefix + text; });
  }
  if (type == "Replace") {
    QUARTET_ASSIGN_OR_RETURN(const MatchFinder find, FindPattern(step));
    QUARTET_ASSIGN_OR_RETURN(const std::string content, StepText(step, "content"));
    return Normalizer([=](const std::string& text) -> absl::StatusOr<std::string> {
      RegexBudget budget(text.size());
      const absl::StatusOr<std::vector<TextRange>> matches = find(text, &budget);
      if (!matches.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("Replace: ", std::string(matches.status().message())));
      }
      return ReplaceMatches(text, *matches, content);
    });
  }
  return StepNotSupported(type);
}

}  // namespace quartet
