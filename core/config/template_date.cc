#include "core/config/template_date.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet {

absl::StatusOr<std::optional<absl::CivilDay>> TemplateDate(const DataConfig& data) {
  const std::string& text = data.template_date();
  if (text.empty()) return std::nullopt;
  absl::CivilDay day;
  // What the parser takes beside it ("2026-7-1", a fifth digit of the year) would be another value in run.textproto.
  const bool is_day = absl::ParseCivilTime(text, &day) && absl::FormatCivilTime(day) == text;
  if (is_day && day.year() >= 1970 && day.year() <= 9999) return day;
  return absl::InvalidArgumentError(absl::StrCat("data.template_date: \"", text,
                                                 "\" is not allowed; a day such as \"2026-11-28\", of the years 1970 "
                                                 "to 9999"));
}

}  // namespace quartet
