#include "rollout/engine/engine_options.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/field_rules/field_rules.h"
#include "core/kernels/cpu/attention/paged_attention_kernel.h"
#include "core/rank/rank_setup.h"

namespace quartet {

absl::Status CheckOptions(const RolloutConfig& options, const RankContext& context) {
  QUARTET_RETURN_IF_ERROR(CheckRules("rollout.", options));
  const auto refuse = [](const char* field, const auto& value, const auto& allowed) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.", field, " is ", value, "; allowed: ", allowed));
  };
  if (context.world_size % options.tensor_parallel_size() != 0) {
    std::string divisors = "1";
    for (int size = 2; size <= context.world_size; ++size) {
      if (context.world_size % size == 0) absl::StrAppend(&divisors, ", ", size);
    }
    return refuse("tensor_parallel_size", options.tensor_parallel_size(),
                  absl::StrCat(divisors, " (the divisors of services.rollout.ranks, ", context.world_size, ")"));
  }
  if (options.tensor_parallel_size() > 1 && options.zero_stage() != 0) {
    return refuse("tensor_parallel_size", options.tensor_parallel_size(), "1 with rollout.zero_stage 3");
  }
  if (options.block_size() % PagedCacheLayout::kBlockSizeMultiple != 0) {
    return refuse("block_size", options.block_size(), "multiples of 16");
  }
  if (options.max_model_len() < 2 && options.max_model_len() != 0) {
    return refuse("max_model_len", options.max_model_len(), "at least 2, or 0 (the model's)");
  }
  return absl::OkStatus();
}

absl::StatusOr<EngineGroups> MakeEngineGroups(const RolloutConfig& options, const RankContext& context) {
  const ProcessGroupOptions of_all = GroupOptions(context, "rollout");
  EngineGroups groups;
  QUARTET_ASSIGN_OR_RETURN(groups.all, MakeProcessGroup(context.store, of_all));
  if (options.tensor_parallel_size() == 1) return groups;
  ProcessGroupOptions alone;
  alone.device = context.device;
  QUARTET_ASSIGN_OR_RETURN(groups.alone, MakeProcessGroup(nullptr, alone));
  if (options.tensor_parallel_size() == context.world_size) return groups;
  ProcessGroupOptions of_shares = of_all;
  const int engine = context.rank / options.tensor_parallel_size();
  of_shares.rank = context.rank % options.tensor_parallel_size();
  of_shares.size = options.tensor_parallel_size();
  of_shares.name = absl::StrCat("rollout/engine_", engine);
  for (int r = 0; r < of_shares.size; ++r) of_shares.rank_names.push_back(engine * of_shares.size + r);
  QUARTET_ASSIGN_OR_RETURN(groups.shares, MakeProcessGroup(context.store, of_shares));
  return groups;
}

void EngineGroups::Leave(const std::string& why) const {
  for (const auto* group : {&shares, &all}) {
    if (*group != nullptr) (*group)->Leave(why);
  }
}

StepAgreement AgreeOn(const StepAgreement& own, ProcessGroup* group, at::Device device) {
  std::vector<int64_t> of_ranks(2 * group->size());
  of_ranks[2 * group->rank()] = own.batches;
  of_ranks[2 * group->rank() + 1] = own.idle ? 1 : 0;
  const at::Tensor here = at::from_blob(of_ranks.data(), {static_cast<int64_t>(of_ranks.size())}, at::kLong);
  const at::Tensor shared = here.to(device);
  group->AllGatherInPlace(shared)->Wait();
  here.copy_(shared);
  StepAgreement agreed = own;
  for (size_t i = 0; i < of_ranks.size(); i += 2) {
    agreed.batches = std::min(agreed.batches, of_ranks[i]);
    agreed.idle = agreed.idle && of_ranks[i + 1] != 0;
  }
  return agreed;
}

}  // namespace quartet
