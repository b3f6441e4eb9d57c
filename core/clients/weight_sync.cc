#include "core/clients/weight_sync.h"

#include <utility>

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

absl::StatusOr<double> SyncWeights(Services& services, uint64_t step, uint64_t version, WeightManifest* published) {
  QUARTET_ASSIGN_OR_RETURN(PublishReply reply, services.policy_trainer->Publish(step, version));
  *published = std::move(*reply.mutable_manifest());
  return TakeWeights(*services.rollout, step, *published);
}

}  // namespace quartet
