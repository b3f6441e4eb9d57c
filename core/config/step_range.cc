#include "core/config/step_range.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/config/conditions.h"

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

std::string DescribeSteps(const std::vector<int64_t>& steps) {
  std::string text;
  for (size_t first = 0, next = 0; first < steps.size(); first = next) {
    for (next = first + 1; next < steps.size() && steps[next] == steps[next - 1] + 1; ++next) {
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", steps[first] + 1);
    if (next > first + 1) absl::StrAppend(&text, " to ", steps[next - 1] + 1);
  }
  return text;
}

}  // namespace quartet
