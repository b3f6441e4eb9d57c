// Failures on demand, for tests of what happens after them.
//
// The environment variable QUARTET_FAIL_POINTS holds "name=action[@n]" items separated by commas. Actions:
//   kill      the process ends as by SIGKILL
//   error     FailPoint returns INTERNAL
//   sleep:ms  FailPoint sleeps, then returns OK
//   trip      FailPointArmed returns true
// With @n the action happens on the n-th pass only (from 1), else on every pass. A malformed value ends the process
// with a message at the first pass of any point.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace quartet {

// Each counts as one pass of the point `name` ("<service>.<place>"). Thread safe; costs one load when the variable is
// not set.
absl::Status FailPoint(std::string_view name);
// Where errors are exceptions: throws a std::runtime_error where FailPoint returns an error.
void ThrowAtFailPoint(std::string_view name);
bool FailPointArmed(std::string_view name);

// Replaces what the environment says and restarts all counts. INVALID_ARGUMENT names the malformed item.
absl::Status SetFailPoints(std::string_view specification);

}  // namespace quartet
