#include "core/clients/weight_sync.h"

#include "absl/status/status.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"

namespace quartet {

absl::StatusOr<double> TakeWeights(RolloutClient& rollout, uint64_t step, const WeightManifest& manifest) {
  absl::Status status = rollout.BeginUpdate(step, manifest).status();
  if (status.ok()) {
    const absl::StatusOr<CommitUpdateReply> committed = rollout.CommitUpdate(step, manifest.version());
    if (committed.ok()) return committed->pause_seconds();
    status = committed.status();
  }
  if (const absl::Status aborted = rollout.AbortUpdate(step); !aborted.ok()) {
    QUARTET_LOG(kWarning) << "while giving up a weight sync: " << aborted.message();
  }
  return status;
}

}  // namespace quartet
