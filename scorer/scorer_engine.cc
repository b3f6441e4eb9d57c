#include "scorer/scorer_engine.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/memory/catch_exceptions.h"
#include "core/rank/rank_info.h"
#include "core/rank/rank_setup.h"
#include "core/training/engine/forward.h"
#include "core/zero/sharded/sharded_model.h"

namespace quartet {

struct ScorerEngine::Impl {
  const RankContext* context;
  Ledger ledger;
  std::unique_ptr<ProcessGroup> ranks;
  std::unique_ptr<ShardedModel> reference;               // null: not asked for
  std::map<int, std::unique_ptr<ShardedModel>> rewards;  // by index into reward.source

  absl::StatusOr<std::unique_ptr<ShardedModel>> LoadFrozen(const ScoringModel& model, int64_t vocabulary) {
    const ShardedModelOptions options = {.head = model.is_reference() ? HeadKind::kVocabulary : HeadKind::kScalar,
                                         .zero_stage = model.zero_stage,
                                         .compute_dtype = ComputeType(model.dtype),
                                         .offload_param = model.offload_param,
                                         .device = DeviceOf(*context),
                                         .vocabulary = vocabulary,
                                         .scalar_head = model.scalar_head};
    return ShardedModel::Load(model.folder, options, ranks.get(), &ledger);
  }
};

ScorerEngine::ScorerEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ScorerEngine::~ScorerEngine() = default;

absl::StatusOr<std::unique_ptr<ScorerEngine>> ScorerEngine::Load(const std::vector<ScoringModel>& models,
                                                                 const RankContext& context, int64_t vocabulary) {
  auto impl = std::make_unique<Impl>();
  impl->context = &context;
  SetBudgets(context, &impl->ledger);
  const absl::Status status = CatchExceptions("loading the scorer's models", impl->ledger, [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(impl->ranks, JoinRanks(context, "scorer"));
    for (const ScoringModel& model : models) {
      auto& loaded = model.is_reference() ? impl->reference : impl->rewards[model.source];
      QUARTET_ASSIGN_OR_RETURN(loaded, impl->LoadFrozen(model, vocabulary));
    }
    return absl::OkStatus();
  });
  QUARTET_RETURN_IF_ERROR(status);
  return std::unique_ptr<ScorerEngine>(new ScorerEngine(std::move(impl)));
}

absl::Status ScorerEngine::ReferenceLogProbs(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                                             std::vector<TokenValues>* replies) {
  QUARTET_CHECK(impl_->reference != nullptr) << "no reference model was loaded";
  return CatchExceptions("reference log-probabilities", impl_->ledger,
                         [&] { return ForwardLogProbs(*impl_->reference, call, sequences, replies); });
}

absl::Status ScorerEngine::Rewards(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                                   std::vector<TokenValues>* replies) {
  const auto model = impl_->rewards.find(static_cast<int>(call.model()));
  QUARTET_CHECK(model != impl_->rewards.end()) << "reward.source[" << call.model() << "] has no model";
  return CatchExceptions("rewards", impl_->ledger, [&] {
    return ForwardScalars(*model->second, ScalarRows::kLastToken, call, sequences, replies);
  });
}

RankInfo ScorerEngine::Info() const {
  RankInfo info = DescribeRank(*impl_->context, impl_->ledger);
  DescribeGroup(*impl_->ranks, /*stride=*/1, &info);
  DescribeDevice(DeviceOf(*impl_->context), &info);
  int64_t parameters = 0, bytes = 0;
  const auto count = [&](const ShardedModel& model) {
    parameters += model.layout().numel();
    bytes = std::max<int64_t>(bytes, c10::elementSize(model.options().compute_dtype));
    if (model.options().compute_dtype == at::kBFloat16) DescribeCpuKernels(*impl_->context, &info);
  };
  if (impl_->reference != nullptr) count(*impl_->reference);
  for (const auto& [index, model] : impl_->rewards) count(*model);
  info.set_model_parameters(parameters);
  info.set_gathered_bytes_per_parameter(static_cast<int32_t>(bytes));
  return info;
}

}  // namespace quartet
