#include "core/service/rpc/status_conversion.h"

#include <string>

#include "core/base/logging.h"
#include "core/service/rpc/wire_text.h"

namespace quartet {

// The numbers of both are those of google.rpc.Code.

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string text = WireText(status.message());
  if (text != status.message()) QUARTET_LOG(kError) << "an error goes out shortened: " << std::string(status.message());
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), text);
}

absl::Status FromGrpc(const grpc::Status& status) {
  // Nothing came back for the time of keepalive (credentials.cc), though the connection stands.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_message() == "keepalive watchdog timeout") {
    return absl::UnavailableError(kNoAnswer);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace quartet
