// Which fields have an effect only where something else holds. No default is filled in where one has none
// (core/config/resolving/defaults.h), and what the user has written there is refused.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct Need {
  std::string path;  // a field, or a message with all below it
  // Of a configuration whose defaults are filled in, but for those that rows above have found idle. Holds where
  // what it looks at is a value that is not allowed: that is refused by itself.
  std::function<bool(const RunConfig& config)> holds;
  // Why the field has no effect where that does not hold.
  std::function<std::string(const RunConfig& config)> why;
};

// Clears what has no effect in `config`, whose defaults are filled in. Returns the rows that do not hold.
std::vector<const Need*> ClearIdle(RunConfig* config);

// INVALID_ARGUMENT names what is set in `written`, a part of what a configuration is made of, although one of these
// rows, which ClearIdle has found, says that it has no effect in `config`; and why the first has none.
absl::Status CheckIdle(const std::vector<const Need*>& idle, const RunConfig& written, const RunConfig& config);

}  // namespace quartet
