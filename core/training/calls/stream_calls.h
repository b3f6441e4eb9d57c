// The public calls of trainers and scorer that bring sequences on a client's stream. gRPC-free: a stream is what has
// the Read and Write of gRPC's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/service/rpc/batch_limits.h"
#include "core/service/rpc/replay_guard.h"
#include "core/service/rpc/stream_io.h"
#include "core/training/batch/batch_check.h"
#include "core/training/calls/sequence_calls.h"
#include "proto/experience.pb.h"

namespace quartet {

// Answers every sequence of `stream`, which keeps to `batch_limits`, with what `method` (as RunForward wants it) makes
// of it. A header that has a temperature is asked for it.
template <typename Request, typename Reply, typename Stream>
absl::Status AnswerForward(RankGroup& group, const std::string& method, const MicroBatching& batching,
                           const SequenceLimits& limits, BatchLimits* batch_limits, const Deadline& deadline,
                           Stream* stream, TokenValues* (Reply::*values)()) {
  QUARTET_ASSIGN_OR_RETURN(const Batch<Request> batch, ReadBatch<Request>(stream, batch_limits));
  ForwardCall call;
  if constexpr (requires(HeaderOf<Request> h) { h.temperature(); }) {
    QUARTET_RETURN_IF_ERROR(CheckTemperature(batch.header.temperature()));
    call.set_temperature(batch.header.temperature());
  }
  if constexpr (requires(HeaderOf<Request> h) { h.without_adapters(); }) {
    call.set_without_adapters(batch.header.without_adapters());
  }
  if constexpr (requires(HeaderOf<Request> h) { h.last_token(); }) call.set_last_token(batch.header.last_token());
  std::vector<const TokenSequence*> sequences;
  sequences.reserve(batch.items.size());
  for (const TokenSequence& item : batch.items) sequences.push_back(&item);
  QUARTET_RETURN_IF_ERROR(CheckSequences(sequences, limits));
  QUARTET_ASSIGN_OR_RETURN(std::vector<TokenValues> found,
                           RunForward(group, method, call, sequences, batching, deadline));
  for (TokenValues& value : found) {
    Reply reply;
    *(reply.*values)() = std::move(value);
    if (!stream->Write(reply)) return absl::CancelledError("the client stopped reading");
  }
  return absl::OkStatus();
}

// Reads one update, which keeps to `batch_limits`, checks it by `check` and does it once by `apply`, which returns
// absl::StatusOr<Reply>; both are given the header and the sequences.
template <typename Request, typename Reply, typename Stream, typename Check, typename Apply>
absl::Status AnswerUpdate(ReplayGuard& guard, BatchLimits* batch_limits, Stream* stream, const Check& check,
                          const Apply& apply, Reply* reply) {
  QUARTET_ASSIGN_OR_RETURN(const Batch<Request> batch, ReadBatch<Request>(stream, batch_limits));
  QUARTET_RETURN_IF_ERROR(check(batch.header, batch.items));
  return guard.DoOnce(batch.header.identity(), reply, [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(*reply, apply(batch.header, batch.items));
    return absl::OkStatus();
  });
}

}  // namespace quartet
