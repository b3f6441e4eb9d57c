#include "core/config/step_range.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/config/checks/conditions.h"

namespace quartet {

absl::StatusOr<StepRange> ParseStepRange(absl::string_view field, const std::string& text) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  const std::string& last = text.find('-') == std::string::npos ? ends.first : ends.second;
  StepRange range;
  if (absl::SimpleAtoi(ends.first, &range.first) && absl::SimpleAtoi(last, &range.last) && range.first >= 0 &&
      range.first <= range.last) {
    return range;
  }
  return Bad(field, text, "it must be a step (\"10\") or steps from one to another (\"10-12\"), from 0 on");
}

}  // namespace quartet
