// Makes state-changing calls safe to repeat: the rules of CallIdentity in proto/common.proto.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/common.pb.h"

namespace quartet {

// Remembers the last call that was applied, with its reply. Thread safe. One guard serves all state-changing calls of
// one service.
class ReplayGuard {
 public:
  // Does `work`, which fills in `reply`, unless the call is the last one that was applied: then `reply` is what was
  // answered. `work` returns only once nothing of it can have an effect any more. Work that fails had none, and may be
  // asked for again; what it throws is an error like any other. INVALID_ARGUMENT: no run_id, or sequence 0.
  // FAILED_PRECONDITION: an epoch or a sequence lower than that of the run's last call, or the last call with another
  // type of reply. UNAVAILABLE: the call is under way. For the epoch a run is what stands before the last '@' of
  // run_id, behind which orchestrators that follow each other differ.
  absl::Status DoOnce(const CallIdentity& identity, google::protobuf::MessageLite* reply,
                      absl::FunctionRef<absl::Status()> work);

  // The call that was applied last: of one run the one with the highest sequence.
  std::optional<CallIdentity> last_applied() const;

 private:
  absl::Status CheckLocked(const CallIdentity& identity) const;

  mutable std::mutex mutex_;
  std::vector<CallIdentity> under_way_;
  std::optional<CallIdentity> last_;
  std::string last_reply_, last_reply_type_;
};

}  // namespace quartet
