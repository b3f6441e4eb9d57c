// What the gRPC services of trainers and scorer share. LibTorch-free.
#pragma once

#include <grpcpp/server_context.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/service/rank_group.h"
#include "core/service/replay_guard.h"
#include "proto/common.pb.h"

namespace quartet {

// When the caller stops waiting.
inline absl::Time DeadlineOf(const grpc::ServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

// FAILED_PRECONDITION, naming the leader, on every other rank.
absl::Status CheckLeader(const RankGroup& group, const std::string& call);

// The whole payload of a state-changing call: everything but the identity's epoch.
template <typename Header, typename Item>
uint64_t PayloadHash(Header header, const std::vector<Item>& items) {
  header.mutable_identity()->clear_epoch();
  uint64_t hash = HashBytes(header.SerializeAsString());
  for (const Item& item : items) hash = HashBytes(item.SerializeAsString(), hash);
  return hash;
}

// Does `work`, which returns absl::StatusOr<Reply>, unless the call was done before: then its reply comes back. Work
// that fails had no effect, and may be asked for again.
template <typename Reply, typename Work>
absl::StatusOr<Reply> DoOnce(ReplayGuard& guard, const CallIdentity& identity, uint64_t payload_hash,
                             absl::Time deadline, Work&& work) {
  QUARTET_ASSIGN_OR_RETURN(ReplayGuard::Admission admission, guard.Begin(identity, payload_hash, deadline));
  Reply reply;
  if (!admission.is_new) {
    if (!reply.ParseFromString(admission.reply)) return absl::InternalError("unreadable stored reply");
    return reply;
  }
  absl::StatusOr<Reply> result = std::forward<Work>(work)();
  if (result.ok()) {
    guard.Finish(identity, result->SerializeAsString());
  } else {
    guard.Abandon(identity);
  }
  return result;
}

}  // namespace quartet
