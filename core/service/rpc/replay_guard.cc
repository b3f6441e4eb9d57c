#include "core/service/rpc/replay_guard.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/errors/exceptions.h"

namespace quartet {
namespace {

std::string Named(const CallIdentity& identity) {
  return absl::StrCat("call (run ", identity.run_id(), ", step ", identity.step(), ", sequence ", identity.sequence(),
                      ")");
}

bool AreOneCall(const CallIdentity& a, const CallIdentity& b) {
  return a.run_id() == b.run_id() && a.step() == b.step() && a.sequence() == b.sequence();
}

// Each orchestrator of a run calls it "<folder>@<epoch>", so that its calls are none of another's.
absl::string_view RunOf(const CallIdentity& identity) {
  const absl::string_view id = identity.run_id();
  return id.substr(0, id.rfind('@'));
}

}  // namespace

absl::Status ReplayGuard::CheckLocked(const CallIdentity& identity) const {
  if (identity.run_id().empty()) return absl::InvalidArgumentError("identity.run_id is not set");
  if (identity.sequence() == 0) return absl::InvalidArgumentError("identity.sequence is 0; it counts from 1");
  for (const CallIdentity& other : under_way_) {
    if (AreOneCall(other, identity)) return absl::UnavailableError(absl::StrCat(Named(identity), " is under way"));
  }
  if (last_.has_value() && RunOf(*last_) == RunOf(identity) && identity.epoch() < last_->epoch()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Named(identity), " has epoch ", identity.epoch(), ", but epoch ", last_->epoch(),
                     " was seen already: another orchestrator has taken over this run"));
  }
  if (!last_.has_value() || last_->run_id() != identity.run_id()) return absl::OkStatus();
  if (identity.sequence() > last_->sequence() || AreOneCall(identity, *last_)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Named(identity), " is too old: sequence ", last_->sequence(),
                   " was applied already, and the reply of the last call alone is kept"));
}

absl::Status ReplayGuard::DoOnce(const CallIdentity& identity, google::protobuf::MessageLite* reply,
                                 absl::FunctionRef<absl::Status()> work) {
  std::unique_lock lock(mutex_);
  QUARTET_RETURN_IF_ERROR(CheckLocked(identity));
  if (last_.has_value() && AreOneCall(identity, *last_)) {
    last_->set_epoch(identity.epoch());
    if (reply->GetTypeName() == last_reply_type_ && reply->ParseFromString(last_reply_)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(Named(identity), " was another call when it came first"));
  }
  under_way_.push_back(identity);
  lock.unlock();
  absl::Status status = CatchAll(work);  // whatever becomes of it, the call is not under way any more
  lock.lock();
  std::erase_if(under_way_, [&](const CallIdentity& other) { return AreOneCall(other, identity); });
  // Calls may overlap: a later one that has ended before stays the last.
  if (status.ok() &&
      (!last_.has_value() || last_->run_id() != identity.run_id() || identity.sequence() > last_->sequence())) {
    last_ = identity;
    last_reply_ = reply->SerializeAsString();
    last_reply_type_ = reply->GetTypeName();
  }
  return status;
}

std::optional<CallIdentity> ReplayGuard::last_applied() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

}  // namespace quartet
