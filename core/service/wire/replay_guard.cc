#include "core/service/wire/replay_guard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

std::string Named(const CallIdentity& identity) {
  return absl::StrCat("call (run ", identity.run_id(), ", step ", identity.step(), ", sequence ", identity.sequence(),
                      ")");
}

}  // namespace

absl::StatusOr<ReplayGuard::Admission> ReplayGuard::Begin(const CallIdentity& identity, uint64_t payload_hash,
                                                          const Deadline& deadline) {
  if (identity.run_id().empty()) return absl::InvalidArgumentError("identity.run_id is not set");
  if (identity.sequence() == 0) return absl::InvalidArgumentError("identity.sequence is 0; it counts from 1");
  const Key key = KeyOf(identity);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    // Looked at anew after each wait: a newer orchestrator may have come meanwhile.
    uint64_t& highest_epoch = epochs_[identity.run_id()];
    if (identity.epoch() < highest_epoch) {
      return absl::FailedPreconditionError(
          absl::StrCat(Named(identity), " has epoch ", identity.epoch(), ", but epoch ", highest_epoch,
                       " was seen already: another orchestrator has taken over this run"));
    }
    highest_epoch = identity.epoch();

    auto found = entries_.find(key);
    if (found == entries_.end()) {
      auto forgotten = forgotten_.find(identity.run_id());
      if (forgotten != forgotten_.end() && identity.sequence() <= forgotten->second) {
        return absl::FailedPreconditionError(absl::StrCat(Named(identity), " is too old: replies up to sequence ",
                                                          forgotten->second, " are not kept any more"));
      }
      entries_[key] = Entry{.payload_hash = payload_hash};
      return Admission{.is_new = true};
    }
    if (found->second.payload_hash != payload_hash) {
      return absl::AlreadyExistsError(absl::StrCat(Named(identity), " came before with another payload"));
    }
    if (found->second.finished) return Admission{.is_new = false, .reply = found->second.reply};

    if (deadline.passed()) return absl::DeadlineExceededError(absl::StrCat(Named(identity), " is still under way"));
    changed_.wait_until(lock, deadline.time());
  }
}

void ReplayGuard::Finish(const CallIdentity& identity, std::string reply) {
  const Key key = KeyOf(identity);
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[key];
  entry.finished = true;
  entry.reply = std::move(reply);
  last_applied_ = identity;
  finished_.push_back(key);
  if (finished_.size() > capacity_) {
    const Key& oldest = finished_.front();
    uint64_t& forgotten = forgotten_[oldest.run_id];
    forgotten = std::max(forgotten, oldest.sequence);
    entries_.erase(oldest);
    finished_.pop_front();
  }
  changed_.notify_all();
}

void ReplayGuard::Abandon(const CallIdentity& identity) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(KeyOf(identity));
  changed_.notify_all();
}

std::optional<CallIdentity> ReplayGuard::last_applied() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_applied_;
}

absl::Status DoOnce(ReplayGuard& guard, const CallIdentity& identity, uint64_t payload_hash, const Deadline& deadline,
                    google::protobuf::MessageLite* reply, absl::FunctionRef<absl::Status()> work) {
  QUARTET_ASSIGN_OR_RETURN(const ReplayGuard::Admission admission, guard.Begin(identity, payload_hash, deadline));
  if (!admission.is_new) {
    return reply->ParseFromString(admission.reply) ? absl::OkStatus()
                                                   : absl::InternalError("a stored reply is unreadable");
  }
  absl::Status status = work();
  if (status.ok()) {
    guard.Finish(identity, reply->SerializeAsString());
  } else {
    guard.Abandon(identity);
  }
  return status;
}

}  // namespace quartet
