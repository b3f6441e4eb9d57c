// Steps of a run, as a field and messages name them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quartet {

// From 0, as in metrics.jsonl; both ends included.
struct StepRange {
  int64_t first = 0, last = 0;
  bool contains(int64_t step) const { return first <= step && step <= last; }
};

// Of "10" or "10-12". INVALID_ARGUMENT names `field`.
absl::StatusOr<StepRange> ParseStepRange(absl::string_view field, const std::string& text);

// Steps as people count them, from 1: "3 to 5, 9" of 2, 3, 4 and 8.
std::string DescribeSteps(const std::vector<int64_t>& steps);

}  // namespace quartet
