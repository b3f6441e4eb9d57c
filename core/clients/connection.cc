#include "core/clients/connection.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/network/address.h"
#include "core/network/local_users.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {

void Incarnation::Follow(uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  if (!used_ && epoch >= epoch_) epoch_ = epoch + 1;
}

uint64_t Incarnation::Use() {
  const std::lock_guard lock(mutex_);
  used_ = true;
  return epoch_;
}

CallIdentity ServiceClient::Connection::NextIdentity(uint64_t step) {
  CallIdentity identity;
  identity.set_epoch(incarnation->Use());
  identity.set_run_id(absl::StrCat(run_dir, "@", identity.epoch()));
  identity.set_step(step);
  std::lock_guard<std::mutex> lock(mutex);
  identity.set_sequence(++last_sequence);
  return identity;
}

absl::Status ServiceClient::Connection::CheckOwner() const {
  if (!own_user_only) return absl::OkStatus();
  const absl::StatusOr<HostPort> place = ParseHostPort(address);
  if (!place.ok() || !IsLoopback(place->host)) return absl::OkStatus();
  const absl::StatusOr<uid_t> user = UserOfListener(*place);
  if (!user.ok() || IsTrusted(*user)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(service, " at ", address, ": a program of the user ", NameOfUser(*user),
                   " listens there, and this one is of ", NameOfUser(geteuid()),
                   ". Without tls programs of one user talk to each other alone: run all as one, set tls, or "
                   "services.allow_other_users=true for all of them"));
}

absl::Status ServiceClient::Connection::Explain(const std::string& call, const absl::Status& status) const {
  if (status.ok()) return status;
  if (absl::Status reason = cancellation->status(); !reason.ok()) return reason;
  if (absl::IsUnavailable(status)) {
    if (absl::Status owner = CheckOwner(); !owner.ok()) return owner;
  }
  std::string message = absl::StrCat(service, " at ", address, ", ", call, ": ", status.message());
  if (status.code() == absl::StatusCode::kUnavailable && absl::StrContains(status.message(), " of weight version ")) {
    absl::StrAppend(&message, ". Does the policy_trainer run, which has them?");
  } else if (status.code() == absl::StatusCode::kUnavailable && !absl::StrContains(status.message(), kNoAnswer)) {
    absl::StrAppend(&message, ". Does it run? Start it with `./bazelw run //", service,
                    " -- --config=FILE`, or all services with the orchestrator's --launch");
  } else if (status.code() == absl::StatusCode::kCancelled) {
    absl::StrAppend(&message, " (the service has cut off the call)");
  } else if (status.code() == absl::StatusCode::kDeadlineExceeded &&
             !absl::StrContains(status.message(), "has not answered for")) {
    absl::StrAppend(&message, " (train.call_timeout_seconds is ", absl::ToInt64Seconds(timeout), ")");
  }
  return absl::Status(status.code(), message);
}

absl::Status ServiceClient::Connection::BadReply(const std::string& call, const std::string& what) const {
  return absl::InternalError(absl::StrCat(service, " at ", address, ", ", call, ": ", what));
}

}  // namespace quartet
