// The public calls of trainers and scorer that bring sequences on a client's stream. gRPC-free: a stream is what has
// the Read and Write of gRPC's.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/service/rank_group.h"
#include "core/service/replay_guard.h"
#include "core/service/stream_io.h"
#include "core/training/batch_check.h"
#include "core/training/leader_calls.h"
#include "core/training/service_calls.h"
#include "proto/experience.pb.h"

namespace quartet {

// Answers every sequence of `stream` with what `method` (as RunForward wants it) makes of it. A header that has a
// temperature is asked for it.
template <typename Request, typename Reply, typename Stream>
absl::Status AnswerForward(RankGroup& group, const std::string& method, const MicroBatching& batching,
                           const SequenceLimits& limits, absl::Time deadline, Stream* stream,
                           TokenValues* (Reply::*values)()) {
  std::optional<HeaderOf<Request>> header;
  std::vector<TokenSequence> items;
  QUARTET_RETURN_IF_ERROR(ReadBatch<Request>(stream, &header, &items));
  ForwardCall call;
  if constexpr (requires(HeaderOf<Request> h) { h.temperature(); }) {
    QUARTET_RETURN_IF_ERROR(CheckTemperature(header->temperature()));
    call.set_temperature(header->temperature());
  }
  std::vector<const TokenSequence*> sequences;
  sequences.reserve(items.size());
  for (const TokenSequence& item : items) sequences.push_back(&item);
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

// Reads one update, checks it by `check` and does it once by `apply`, which returns absl::StatusOr<Reply>; both are
// given the header and the sequences.
template <typename Request, typename Reply, typename Stream, typename Check, typename Apply>
absl::Status AnswerUpdate(ReplayGuard& guard, absl::Time deadline, Stream* stream, const Check& check,
                          const Apply& apply, Reply* reply) {
  std::optional<HeaderOf<Request>> header;
  std::vector<TrainingSequence> items;
  QUARTET_RETURN_IF_ERROR(ReadBatch<Request>(stream, &header, &items));
  QUARTET_RETURN_IF_ERROR(check(*header, items));
  QUARTET_ASSIGN_OR_RETURN(*reply, DoOnce<Reply>(guard, header->identity(), PayloadHash(*header, items), deadline,
                                                 [&] { return apply(*header, items); }));
  return absl::OkStatus();
}

}  // namespace quartet
