#include "orchestrator/loop/weight_sync.h"

#include "absl/status/status.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"

namespace quartet {

absl::StatusOr<double> SyncWeights(Services& services, uint64_t step, uint64_t version) {
  RolloutClient& rollout = *services.rollout;
  QUARTET_ASSIGN_OR_RETURN(const PublishReply published, services.policy_trainer->Publish(step, version));
  absl::Status status = rollout.BeginUpdate(step, published.manifest()).status();
  if (status.ok()) {
    const absl::StatusOr<CommitUpdateReply> committed = rollout.CommitUpdate(step, version);
    if (committed.ok()) return committed->pause_seconds();
    status = committed.status();
  }
  if (const absl::Status aborted = rollout.AbortUpdate(step); !aborted.ok()) {
    QUARTET_LOG(kWarning) << "while giving up a weight sync: " << aborted.message();
  }
  return status;
}

}  // namespace quartet
