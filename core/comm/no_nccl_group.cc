#include "absl/status/status.h"
#include "core/comm/backends.h"

namespace quartet {

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNcclGroup(KeyValueStore*, const ProcessGroupOptions&) {
  return absl::FailedPreconditionError(
      "process group: device \"cuda\" with more than one rank needs NCCL, which this build does not have; build with "
      "--config=cuda or use device \"cpu\"");
}

}  // namespace quartet
