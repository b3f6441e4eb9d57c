#include "core/training/calls/service_calls.h"

#include "absl/strings/str_cat.h"

namespace quartet {

absl::Status CheckLeader(const RankGroup& group, const std::string& call) {
  if (group.is_leader()) return absl::OkStatus();
  const std::string leader = group.endpoints().empty() ? "" : absl::StrCat(" at ", group.endpoints()[0]);
  return absl::FailedPreconditionError(
      absl::StrCat(call, " is answered by the leader, rank 0", leader, "; this is rank ", group.rank()));
}

}  // namespace quartet
