#include "orchestrator/loop/weight_sync.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "orchestrator/loop/side_by_side.h"

namespace quartet {

absl::StatusOr<double> SyncWeights(Services& services, uint64_t step, uint64_t version) {
  RolloutClient& rollout = *services.rollout;
  QUARTET_ASSIGN_OR_RETURN(const PublishReply published, services.policy_trainer->Publish(step, version));
  double paused_seconds = 0;
  absl::Status status = rollout.BeginUpdate(step, published.manifest()).status();
  if (status.ok()) {
    const Stopwatch pause;
    status = rollout.Pause(step, PauseRequest::KEEP).status();
    if (status.ok()) status = rollout.CommitUpdate(step, version).status();
    // Also where Pause failed: it may have come into effect before its answer was lost.
    const absl::Status resumed = rollout.Resume(step);
    paused_seconds = pause.Seconds();
    if (!resumed.ok() && !status.ok()) {
      QUARTET_LOG(kWarning) << "the rollout may still be paused: " << resumed.message();
    } else if (!resumed.ok()) {
      status = absl::Status(resumed.code(),
                            absl::StrCat(resumed.message(), "; it has version ", version, ", and is still paused"));
    }
  }
  if (!status.ok()) {
    if (absl::Status aborted = rollout.AbortUpdate(step); !aborted.ok()) {
      QUARTET_LOG(kWarning) << "while giving up a weight sync: " << aborted.message();
    }
    return status;
  }
  return paused_seconds;
}

}  // namespace quartet
