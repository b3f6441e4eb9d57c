#include "critic_trainer/critic_engine.h"

#include <utility>

#include "core/base/fail_point.h"
#include "core/base/status_macros.h"
#include "core/training/engine_setup.h"
#include "core/training/forward.h"
#include "core/training/model_save.h"
#include "core/training/rank_info.h"
#include "core/training/update.h"
#include "core/zero/catch_exceptions.h"
#include "core/zero/trainable_model.h"
#include "core/zero/training_state.h"
#include "critic_trainer/value_loss.h"

namespace quartet {

struct CriticEngine::Impl {
  TrainerConfig config;
  const RankContext* context;
  Ledger ledger;
  std::unique_ptr<Mesh> ranks;
  std::unique_ptr<TrainableModel> trainable;

  ShardedModel& model() { return trainable->model(); }
};

CriticEngine::CriticEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CriticEngine::~CriticEngine() = default;

absl::StatusOr<std::unique_ptr<CriticEngine>> CriticEngine::Load(const RunConfig& config, const RankContext& context) {
  auto impl = std::make_unique<Impl>();
  impl->config = config.critic();
  impl->context = &context;
  SetBudgets(context, &impl->ledger);
  const absl::Status status = CatchExceptions("loading the critic", impl->ledger, [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(impl->ranks, JoinMesh(context, "critic", config.critic().shard_size()));
    QUARTET_ASSIGN_OR_RETURN(impl->trainable, TrainableModel::Load(config.critic().pretrain(),
                                                                   TrainerOptions(config.critic(), HeadKind::kScalar,
                                                                                  config.seed(), context),
                                                                   impl->ranks.get(), &impl->ledger));
    if (config.critic().load_checkpoint().empty()) return absl::OkStatus();
    return LoadTrainingState(*impl->trainable, config.critic().load_checkpoint());
  });
  QUARTET_RETURN_IF_ERROR(status);
  return std::unique_ptr<CriticEngine>(new CriticEngine(std::move(impl)));
}

absl::Status CriticEngine::Values(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                                  std::vector<TokenValues>* replies) {
  return CatchExceptions("values", impl_->ledger, [&] {
    return ForwardScalars(impl_->model(), ScalarRows::kBeforeActions, call, sequences, replies);
  });
}

absl::Status CriticEngine::Update(const CriticUpdateCall& call, const std::vector<TrainingSequence>& sequences,
                                  CriticUpdateSums* sums) {
  // Before the first collective: an error here leaves the ranks in step.
  QUARTET_RETURN_IF_ERROR(FailPoint("critic_trainer.update"));
  return CatchExceptions("critic update", impl_->ledger, [&] {
    return TakeStep(
        *impl_->trainable, call, sequences, impl_->config.max_norm(),
        [&](const std::vector<const TrainingSequence*>& part, const PackedBatch& batch, const at::Tensor& hidden_TD,
            const at::Tensor& head_1D) { return ValueLoss(call.header(), part, batch, hidden_TD, head_1D, sums); },
        sums);
  });
}

absl::Status CriticEngine::Save(const SaveCall& call, SaveSummary* summary) {
  return SaveModel(*impl_->trainable, call, "critic_trainer.save", summary);
}

RankInfo CriticEngine::Info() const {
  RankInfo info = DescribeRank(*impl_->context, impl_->ledger);
  DescribeGroups(*impl_->ranks, &info);
  ShardedModel& model = impl_->model();
  info.set_model_parameters(model.layout().numel());
  info.set_gathered_bytes_per_parameter(static_cast<int32_t>(c10::elementSize(model.options().compute_dtype)));
  info.set_optimizer_steps(impl_->trainable->steps());
  return info;
}

}  // namespace quartet
