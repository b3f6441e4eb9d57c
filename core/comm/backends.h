// The implementations of ProcessGroup, for process_group.cc.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/comm/process_group.h"

namespace quartet {

// Both may throw what LibTorch throws.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeGlooGroup(KeyValueStore* store, const ProcessGroupOptions& options);
// FAILED_PRECONDITION in builds without --config=cuda.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNcclGroup(KeyValueStore* store, const ProcessGroupOptions& options);

}  // namespace quartet
