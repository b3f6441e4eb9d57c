#include "rollout/engine/loaded_model.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/comm/agreement.h"
#include "core/model/model_config.h"
#include "core/model/position_check.h"
#include "core/rank/rank_setup.h"

namespace quartet {

absl::StatusOr<LoadedModel> LoadModel(const RolloutConfig& options, const RankContext& context, Ledger* ledger,
                                      const Tokenizer* tokenizer, const std::optional<LoraOptions>& lora) {
  QUARTET_RETURN_IF_ERROR(CheckOptions(options, context));
  QUARTET_ASSIGN_OR_RETURN(const at::Device device, EnterDeviceOf(context));
  QUARTET_ASSIGN_OR_RETURN(EngineGroups groups, MakeEngineGroups(options, context));
  ShardedModelOptions model_options;
  model_options.head = HeadKind::kVocabulary;
  model_options.zero_stage = options.zero_stage();
  model_options.compute_dtype = options.dtype() == "fp32" ? at::kFloat : at::kBFloat16;
  model_options.device = device;
  model_options.lora = lora;
  model_options.vocabulary = tokenizer == nullptr ? 0 : tokenizer->vocab_size();
  if (options.tensor_parallel_size() > 1) {
    model_options.tensor_parallel = {context.rank % options.tensor_parallel_size(), options.tensor_parallel_size()};
  }
  std::unique_ptr<ShardedModel> model;
  const auto load = [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(model, ShardedModel::Load(options.pretrain(), model_options, groups.of_model(), ledger));
    return absl::OkStatus();
  };
  if (groups.alone != nullptr) {
    // A share meets nobody while it is loaded.
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(
        *groups.all, WithoutDeadline(*groups.all, model_options.device, "loading " + options.pretrain(), load),
        model_options.device));
  } else {
    QUARTET_RETURN_IF_ERROR(load());
  }
  const ModelConfig& config = model->config();
  if (model_options.vocabulary > config.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer has ", model_options.vocabulary, " token ids, but vocab_size in ",
                     ConfigPath(config, options.pretrain()), " is ", config.vocab_size, "; allowed: at least as many"));
  }
  const int64_t vocabulary = model_options.vocabulary > 0 ? model_options.vocabulary : config.vocab_size;
  RolloutConfig with_length = options;
  if (options.max_model_len() == 0) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    with_length.set_max_model_len(
        static_cast<int32_t>(std::min({config.max_position_embeddings, config.sliding_window.value_or(kMost), kMost})));
  }
  QUARTET_RETURN_IF_ERROR(
      CheckLengthInPositions(config, options.pretrain(), "rollout.max_model_len", options.max_model_len()));
  for (const int32_t id : options.stop_token_ids()) {
    if (id < 0 || id >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("rollout.stop_token_ids holds ", id, "; allowed: 0 to ", vocabulary - 1));
    }
  }
  return LoadedModel{std::move(with_length), std::move(groups), std::move(model)};
}

}  // namespace quartet
