#include "absl/status/status.h"
#include "core/comm/transport/transport.h"

namespace quartet {

absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(KeyValueStore*, const ProcessGroupOptions&) {
  return absl::FailedPreconditionError(
      "process group: device \"cuda\" with more than one rank needs NCCL, which this build does not have; build with "
      "--config=cuda or use device \"cpu\"");
}

}  // namespace quartet
