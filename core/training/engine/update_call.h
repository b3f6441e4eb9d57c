// An optimizer step as the leader of a trainer hands it to the ranks, and as they read it.
#pragma once

#include "absl/status/status.h"
#include "core/training/engine/rank_calls.pb.h"

namespace quartet {

// `header` is the trainer's own: PolicyUpdateHeader, CriticUpdateHeader. Micro-batches are left to the caller.
template <typename Header>
UpdateCall MakeUpdateCall(const Header& header) {
  UpdateCall call;
  call.set_header(header.SerializeAsString());
  call.set_learning_rate(header.learning_rate());
  return call;
}

template <typename Header>
absl::Status ParseHeader(const UpdateCall& call, Header* header) {
  if (header->ParseFromString(call.header())) return absl::OkStatus();
  return absl::InternalError("unreadable header of an update");
}

}  // namespace quartet
