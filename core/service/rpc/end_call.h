// A server's end of a call from outside of its handler.
#pragma once

#include <grpc/grpc.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {

// Ends a server's call: its client reads `status`, an error, and the handler's reads and writes fail. No effect where
// the handler's own status is on its way. Any thread; what the handler's end does may be done in here.
inline void EndCall(grpc_call* call, const absl::Status& status) {
  const grpc::Status said = ToGrpc(status);
  // It goes into HTTP/2's trailers as it is, and what reads them takes it for percent-encoded.
  std::string text;
  for (const unsigned char c : said.error_message()) {
    if (c < 0x20 || c > 0x7e || c == '%') {
      absl::StrAppendFormat(&text, "%%%02X", c);
    } else {
      text += static_cast<char>(c);
    }
  }
  // On a server's HTTP/2 it is sent, whatever grpc.h says of transports in general.
  grpc_call_cancel_with_status(call, static_cast<grpc_status_code>(said.error_code()), text.c_str(), nullptr);
}

}  // namespace quartet
