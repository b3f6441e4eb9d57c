// Deadlines between gRPC's form and ours, both on monotonic clocks: what is done to the wall clock changes none. On the
// wire gRPC sends what is left.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <algorithm>

#include "absl/time/time.h"
#include "core/base/time/deadline.h"

namespace quartet {

// When to give a call up: some seconds before whoever made it does, so that it hears what was waited for, such as the
// rank that is missing, and not that its time is over.
inline Deadline DeadlineOf(const grpc::ServerContext& context) {
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == 0) return Deadline::Never();
  const absl::Duration left =
      absl::Microseconds(gpr_timespec_to_micros(gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC))));
  return Deadline::In(left - std::min(left / 10, absl::Seconds(5)));
}

// So long from now, for gRPC.
inline gpr_timespec FromNow(absl::Duration timeout) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(absl::ToInt64Microseconds(timeout), GPR_TIMESPAN));
}

inline void SetDeadline(grpc::ClientContext* context, const Deadline& deadline) {
  if (!deadline.never()) context->set_deadline(FromNow(deadline.left()));
}

}  // namespace quartet
