// Deadlines between gRPC's form and ours. On the wire gRPC sends what is left.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"

namespace quartet {

// When whoever made the call stops waiting.
inline Deadline DeadlineOf(const grpc::ServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return Deadline::Never();
  return Deadline::In(absl::FromChrono(deadline) - absl::Now());
}

inline void SetDeadline(grpc::ClientContext* context, const Deadline& deadline) {
  if (deadline.never()) return;
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(deadline.left()));
}

}  // namespace quartet
