// Steps of a run, as a field names them.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace quartet
