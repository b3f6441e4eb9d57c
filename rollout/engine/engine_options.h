// What an engine's options may be, and the groups of ranks that they make.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/comm/process_group.h"
#include "core/rank/rank_context.h"
#include "rollout/engine/engine.h"

namespace quartet {

// Whether the options can be served by `context.world_size` ranks: INVALID_ARGUMENT names the option, its value and
// what is allowed. What depends on the model is not looked at.
absl::Status CheckOptions(const RolloutConfig& options, const RankContext& context);

// The ranks of the service; those that have shares of the model with this one; and those over which the model is
// sharded: all, but for a share of it, which is whole.
struct EngineGroups {
  std::unique_ptr<ProcessGroup> all;
  std::unique_ptr<ProcessGroup> shares;  // null: all
  std::unique_ptr<ProcessGroup> alone;   // null: all
  ProcessGroup* of_shares() const { return shares == nullptr ? all.get() : shares.get(); }
  ProcessGroup* of_model() const { return alone == nullptr ? all.get() : alone.get(); }
  // Of all of them, as ProcessGroup::Leave.
  void Leave(const std::string& why) const;
};

// Collective over all ranks; for options that were checked.
absl::StatusOr<EngineGroups> MakeEngineGroups(const RolloutConfig& options, const RankContext& context);

// What the ranks of `group`, each of which says its own, have of the fewest batches, and whether all are idle.
// Collective; throws as collectives do.
StepAgreement AgreeOn(const StepAgreement& own, ProcessGroup* group, at::Device device);

}  // namespace quartet
