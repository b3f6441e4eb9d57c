#include "core/config/template_date.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet {

absl::StatusOr<std::optional<absl::CivilDay>> TemplateDate(const DataConfig& data) {
  const std::string& text = data.template_date();
  if (text.empty()) return std::nullopt;
  absl::CivilDay day;
  if (absl::ParseCivilTime(text, &day)) return day;
  return absl::InvalidArgumentError(
      absl::StrCat("data.template_date: \"", text, "\" is not allowed; a day such as \"2026-11-28\""));
}

}  // namespace quartet
