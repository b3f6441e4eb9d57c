// The one place where errors change between absl's form and gRPC's; codes and messages are kept, messages as
// far as WireText keeps them; where it does not, the whole is in the log.
#pragma once

#include <grpcpp/support/status.h>

#include <exception>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "core/errors/exceptions.h"

namespace quartet {

grpc::Status ToGrpc(const absl::Status& status);

// What the body of a handler comes to: `work` returns an absl::Status or a grpc::Status. What it throws (gRPC itself
// would say "Unexpected error in RPC handling") is an error like any other, by StatusOfException.
template <typename Work>
requires std::is_invocable_v<Work> grpc::Status ToGrpc(Work&& work) {
  try {
    if constexpr (std::is_same_v<std::invoke_result_t<Work>, grpc::Status>) {
      return std::forward<Work>(work)();
    } else {
      return ToGrpc(absl::Status(std::forward<Work>(work)()));
    }
  } catch (const std::exception& error) {
    return ToGrpc(StatusOfException(error));
  }
}

// Of a peer that does not answer keepalive any more, in place of gRPC's "keepalive watchdog timeout".
inline constexpr char kNoAnswer[] = "has not answered for 30 s: it is stopped, or its host is gone";
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace quartet
