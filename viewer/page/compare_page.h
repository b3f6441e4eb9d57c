// One page of several runs: their curves over each other, and what differs in their configurations.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// The page of the runs in these folders. NOT_FOUND names a folder that is no run's.
absl::StatusOr<std::string> ComparePage(const std::vector<std::string>& run_dirs);

}  // namespace quartet
