// Makes state-changing calls safe to repeat: the rules of CallIdentity in proto/common.proto.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/hash.h"
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
                                  const Deadline& deadline = Deadline::Never());

  // The call was applied; `reply` is given to those who repeat it.
  void Finish(const CallIdentity& identity, std::string reply);

  // The call has ended without effect; a repeat is new.
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

// The payload of a call: which it is, and everything in the request but the identity.
template <typename Header, typename Item = Header>
uint64_t PayloadHash(Header header, const std::vector<Item>& items = {}) {
  header.clear_identity();
  uint64_t hash = HashBytes(header.SerializeAsString(), HashBytes(std::string(header.GetTypeName())));
  for (const Item& item : items) hash = HashBytes(item.SerializeAsString(), hash);
  return hash;
}

// Does `work`, which fills in `reply`, unless the call was done before: then `reply` is what was answered. While the
// work goes on, however long after `deadline`, a repeat waits for it: so `work` returns only once nothing of it can
// have an effect any more. Work that fails had none, and may be asked for again.
absl::Status DoOnce(ReplayGuard& guard, const CallIdentity& identity, uint64_t payload_hash, const Deadline& deadline,
                    google::protobuf::MessageLite* reply, absl::FunctionRef<absl::Status()> work);

}  // namespace quartet
