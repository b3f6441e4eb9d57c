#include "orchestrator/clients/connection.h"

#include "absl/strings/str_cat.h"

namespace quartet {

CallIdentity ServiceClient::Connection::NextIdentity(uint64_t step) {
  CallIdentity identity;
  identity.set_run_id(run_id);
  identity.set_step(step);
  identity.set_epoch(epoch);
  std::lock_guard<std::mutex> lock(mutex);
  identity.set_sequence(++last_sequence);
  return identity;
}

absl::Status ServiceClient::Connection::Explain(const std::string& call, const absl::Status& status) const {
  if (status.ok()) return status;
  if (absl::Status reason = cancellation->status(); !reason.ok()) return reason;
  std::string message = absl::StrCat(service, " at ", address, ", ", call, ": ", status.message());
  if (status.code() == absl::StatusCode::kUnavailable) {
    absl::StrAppend(&message, ". Does it run? Start it with `bazel run //", service,
                    " -- --config=FILE`, or all services with the orchestrator's --launch");
  } else if (status.code() == absl::StatusCode::kCancelled) {
    absl::StrAppend(&message, " (the service has cut off the call)");
  } else if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    absl::StrAppend(&message, " (train.call_timeout_seconds is ", absl::ToInt64Seconds(timeout), ")");
  }
  return absl::Status(status.code(), message);
}

absl::Status ServiceClient::Connection::BadReply(const std::string& call, const std::string& what) const {
  return absl::InternalError(absl::StrCat(service, " at ", address, ", ", call, ": ", what));
}

}  // namespace quartet
