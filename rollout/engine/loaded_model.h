// The model that an engine generates with, as it is loaded.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "core/memory/ledger.h"
#include "core/model/lora_options.h"
#include "core/rank/rank_context.h"
#include "core/tokenizer/tokenizer.h"
#include "core/zero/sharded/sharded_model.h"
#include "proto/run_config.pb.h"
#include "rollout/engine/engine_options.h"

namespace quartet {

struct LoadedModel {
  RolloutConfig options;  // with a max_model_len, which without one is the most that the model allows
  EngineGroups groups;
  std::unique_ptr<ShardedModel> model;
};

// Collective, on the device of `context`. INVALID_ARGUMENT where `options` and the model or the tokenizer (null: there
// is none) do not go together; throws what LibTorch throws.
absl::StatusOr<LoadedModel> LoadModel(const RolloutConfig& options, const RankContext& context, Ledger* ledger,
                                      const Tokenizer* tokenizer, const std::optional<LoraOptions>& lora);

}  // namespace quartet
