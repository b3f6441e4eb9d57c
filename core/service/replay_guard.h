// Makes state-changing calls safe to repeat: the rules of CallIdentity in proto/common.proto.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"

namespace quartet {

// Thread safe. One guard serves all state-changing calls of one service.
class ReplayGuard {
 public:
  // How many replies are kept; a repeat of an older call is FAILED_PRECONDITION.
  explicit ReplayGuard(size_t capacity = 64) : capacity_(capacity) {}

  struct Admission {
    // Do the work, then call Finish or Abandon. Else `reply` is what to answer.
    bool is_new = false;
    std::string reply;
  };

  // `payload_hash` covers everything in the request but `epoch` (core/base/hash.h). A repeat of a call that is under
  // way waits for it, at most until `deadline`. INVALID_ARGUMENT: no run_id, or sequence 0. FAILED_PRECONDITION: a
  // lower epoch than the highest seen, or a sequence that lies before those kept. ALREADY_EXISTS: the identity came
  // with another payload.
  absl::StatusOr<Admission> Begin(const CallIdentity& identity, uint64_t payload_hash,
                                  absl::Time deadline = absl::InfiniteFuture());

  // The call was applied; `reply` is given to those who repeat it.
  void Finish(const CallIdentity& identity, std::string reply);

  // The call failed without effect; a repeat is new.
  void Abandon(const CallIdentity& identity);

  // The last call that was applied.
  std::optional<CallIdentity> last_applied() const;

 private:
  struct Key {
    std::string run_id;
    uint64_t step;
    uint64_t sequence;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    uint64_t payload_hash = 0;
    bool finished = false;
    std::string reply;
  };
  static Key KeyOf(const CallIdentity& identity) { return {identity.run_id(), identity.step(), identity.sequence()}; }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Entry> entries_;
  std::list<Key> finished_;                    // oldest first
  std::map<std::string, uint64_t> forgotten_;  // by run: the highest sequence whose reply was dropped
  std::map<std::string, uint64_t> epochs_;     // by run: the highest seen
  std::optional<CallIdentity> last_applied_;
};

}  // namespace quartet
