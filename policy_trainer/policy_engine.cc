#include "policy_trainer/policy_engine.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "core/base/fail_point.h"
#include "core/base/logging.h"
#include "core/base/meta_device.h"
#include "core/base/status_macros.h"
#include "core/training/engine_setup.h"
#include "core/training/forward.h"
#include "core/training/model_save.h"
#include "core/training/rank_info.h"
#include "core/training/update.h"
#include "core/zero/catch_exceptions.h"
#include "core/zero/trainable_model.h"
#include "core/zero/training_state.h"
#include "policy_trainer/policy_loss.h"

namespace quartet {

struct PolicyEngine::Impl {
  TrainerConfig config;
  const RankContext* context;
  Ledger ledger;
  std::unique_ptr<Mesh> ranks;
  std::unique_ptr<TrainableModel> trainable;
  std::shared_ptr<SnapshotMemory> snapshots;

  ShardedModel& model() { return trainable->model(); }
};

PolicyEngine::PolicyEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PolicyEngine::~PolicyEngine() = default;

absl::StatusOr<std::unique_ptr<PolicyEngine>> PolicyEngine::Load(const RunConfig& config, const RankContext& context) {
  auto impl = std::make_unique<Impl>();
  impl->config = config.actor();
  impl->context = &context;
  SetBudgets(context, &impl->ledger);
  const absl::Status status = CatchExceptions("loading the policy", impl->ledger, [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(impl->ranks, JoinMesh(context, "policy", config.actor().shard_size()));
    QUARTET_ASSIGN_OR_RETURN(impl->trainable, TrainableModel::Load(config.actor().pretrain(),
                                                                   TrainerOptions(config.actor(), HeadKind::kVocabulary,
                                                                                  config.seed(), context),
                                                                   impl->ranks.get(), &impl->ledger));
    impl->snapshots = std::make_shared<SnapshotMemory>(
        &impl->ledger, ComputeDevice(impl->model().resident(0)) == at::kCPU ? MemoryTier::kDevice : MemoryTier::kHost);
    if (config.actor().load_checkpoint().empty()) return absl::OkStatus();
    return LoadTrainingState(*impl->trainable, config.actor().load_checkpoint());
  });
  QUARTET_RETURN_IF_ERROR(status);
  return std::unique_ptr<PolicyEngine>(new PolicyEngine(std::move(impl)));
}

absl::Status PolicyEngine::LogProbs(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                                    std::vector<TokenValues>* replies) {
  return CatchExceptions("policy log-probabilities", impl_->ledger,
                         [&] { return ForwardLogProbs(impl_->model(), call, sequences, replies); });
}

absl::Status PolicyEngine::Update(const PolicyUpdateCall& call, const std::vector<TrainingSequence>& sequences,
                                  PolicyUpdateSums* sums) {
  // Before the first collective: an error here leaves the ranks in step.
  QUARTET_RETURN_IF_ERROR(FailPoint("policy_trainer.update"));
  return CatchExceptions("policy update", impl_->ledger, [&] {
    return TakeStep(
        *impl_->trainable, call, sequences, impl_->config.max_norm(),
        [&](const std::vector<const TrainingSequence*>& part, const PackedBatch& batch, const at::Tensor& hidden_TD,
            const at::Tensor& head_VD) { return PolicyLoss(call.header(), part, batch, hidden_TD, head_VD, sums); },
        sums);
  });
}

absl::StatusOr<std::shared_ptr<const PublishedWeights>> PolicyEngine::Publish(uint64_t version) {
  std::shared_ptr<PublishedWeights> snapshot;
  const absl::Status status = CatchExceptions("publishing weights", impl_->ledger, [&] {
    ShardedModel& model = impl_->model();
    const at::ScalarType type = model.options().compute_dtype;
    snapshot = std::make_shared<PublishedWeights>(version, type == at::kBFloat16 ? Dtype::kBF16 : Dtype::kF32,
                                                  impl_->snapshots);
    std::vector<int> first_tensor;  // of each group, in the manifest
    int tensors = 0;
    for (const ParameterGroup& group : model.layout().groups) {
      first_tensor.push_back(tensors);
      tensors += static_cast<int>(group.parameters.size());
    }
    for (const ResidentPiece& piece : model.pieces()) {
      const OwnedRange own = model.owned(piece.group, model.process_group().rank());
      const int64_t begin = std::max(piece.shard_offset, own.offset);
      const int64_t end = std::min(piece.shard_offset + piece.count, own.offset + own.count);
      if (begin >= end) continue;
      if (model.options().device.is_meta()) {
        snapshot->Count(end - begin);
        continue;
      }
      void* bytes = snapshot->Add(first_tensor[piece.group] + piece.parameter,
                                  piece.begin + (begin - piece.shard_offset), end - begin);
      at::from_blob(bytes, {end - begin}, at::TensorOptions().dtype(type))
          .copy_(model.resident(piece.group).narrow(0, begin, end - begin));
    }
    return absl::OkStatus();
  });
  QUARTET_RETURN_IF_ERROR(status);
  return snapshot;
}

absl::Status PolicyEngine::Save(const SaveCall& call, SaveSummary* summary) {
  return SaveModel(*impl_->trainable, call, "policy_trainer.save", summary);
}

RankInfo PolicyEngine::Info() const {
  RankInfo info = DescribeRank(*impl_->context, impl_->ledger);
  DescribeGroups(*impl_->ranks, &info);
  ShardedModel& model = impl_->model();
  info.set_model_parameters(model.layout().numel());
  info.set_gathered_bytes_per_parameter(static_cast<int32_t>(c10::elementSize(model.options().compute_dtype)));
  info.set_optimizer_steps(impl_->trainable->steps());
  return info;
}

}  // namespace quartet
