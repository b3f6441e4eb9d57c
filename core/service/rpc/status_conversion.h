// The one place where errors change between absl's form and gRPC's; codes and messages are kept, messages as
// far as WireText keeps them; where it does not, the whole is in the log.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace quartet {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace quartet
