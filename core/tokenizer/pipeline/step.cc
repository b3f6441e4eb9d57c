#include "core/tokenizer/pipeline/step.h"

#include "core/base/status_macros.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet {

using nlohmann::json;

absl::Status StepError(const json& step, const std::string& what) {
  const auto type = step.is_object() ? step.find("type") : step.end();
  return absl::InvalidArgumentError(absl::StrCat(
      step.is_object() && type != step.end() && type->is_string() ? type->get<std::string>() + ": " : "", what));
}

absl::StatusOr<std::string> StepType(const json& step) {
  if (!step.is_object()) return absl::InvalidArgumentError("is not an object");
  const auto type = step.find("type");
  if (type == step.end() || !type->is_string()) return absl::InvalidArgumentError("has no \"type\"");
  return type->get<std::string>();
}

absl::Status StepNotSupported(const std::string& type) {
  return absl::InvalidArgumentError(absl::StrCat("the type \"", type, "\" is not supported"));
}

absl::StatusOr<bool> StepFlag(const json& step, const char* name, bool fallback) {
  const auto value = step.find(name);
  if (value == step.end()) return fallback;
  if (!value->is_boolean()) return StepError(step, absl::StrCat("\"", name, "\" is not true or false"));
  return value->get<bool>();
}

absl::StatusOr<std::string> StepText(const json& step, const char* name) {
  const auto value = step.find(name);
  if (value == step.end() || !value->is_string())
    return StepError(step, absl::StrCat("\"", name, "\" is not a string"));
  return value->get<std::string>();
}

absl::StatusOr<std::string> StepChar(const json& step, const char* name) {
  QUARTET_ASSIGN_OR_RETURN(std::string text, StepText(step, name));
  if (text.empty() || CharBytes(text, 0) != text.size()) {
    return StepError(step, absl::StrCat("\"", name, "\" is not one character"));
  }
  return text;
}

std::string PlaceInSequence(size_t i) { return absl::StrCat("Sequence: [", i, "]: "); }

}  // namespace quartet
