#include "policy_trainer/policy_engine.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/status_macros.h"
#include "core/hardware/meta_device.h"
#include "core/rl/options/policy_losses.h"
#include "core/training/engine/forward.h"
#include "core/training/engine/update_call.h"
#include "core/weights/device_hashes.h"
#include "core/zero/sharded/sharded_model.h"
#include "policy_trainer/policy_loss.h"
#include "policy_trainer/preference_loss.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {
namespace {

// Elements that leave the device in one copy, so that their conversion takes little memory there.
constexpr int64_t kConvertedAtOnce = int64_t{16} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<PolicyEngine>> PolicyEngine::Load(const TrainerConfig& config, uint64_t seed,
                                                                 const RankContext& context, int64_t vocabulary) {
  std::unique_ptr<PolicyEngine> engine(new PolicyEngine);
  QUARTET_RETURN_IF_ERROR(
      engine->TrainerEngine::Load("policy", HeadKind::kVocabulary, config, seed, context, vocabulary));
  const bool is_host_memory = ComputeDevice(engine->model().options().device) == at::kCPU;
  engine->snapshots_ =
      std::make_shared<SnapshotMemory>(&engine->ledger(), is_host_memory ? MemoryTier::kDevice : MemoryTier::kHost);
  return engine;
}

absl::Status PolicyEngine::Forward(const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                                   std::vector<TokenValues>* replies) {
  if (const std::optional<AdapterConfig>& lora = model().config().lora;
      call.without_adapters() && !(lora.has_value() && lora->are_new)) {
    return absl::InvalidArgumentError(
        lora.has_value()
            ? "without_adapters is set, and actor.pretrain is a folder of adapters: without them the model is "
              "not the policy that training began with"
            : "without_adapters is set, and a whole model is trained");
  }
  return Compute("policy log-probabilities", [&] { return ForwardLogProbs(model(), call, sequences, replies); });
}

absl::Status PolicyEngine::Update(const UpdateCall& call, const std::vector<TrainingSequence>& sequences,
                                  UpdateSums* sums) {
  PolicyUpdateHeader header;
  QUARTET_RETURN_IF_ERROR(ParseHeader(call, &header));
  const auto loss = TraitsOf(header.loss().kind()).is_of_pairs ? MicroBatchPreferenceLoss : MicroBatchPolicyLoss;
  return TakeStep(
      call, sequences,
      [&](const std::vector<const TrainingSequence*>& part, const PackedBatch& batch, const at::Tensor& hidden_TD,
          const at::Tensor& head_VD) { return loss(header, part, batch, hidden_TD, head_VD, sums); },
      sums);
}

uint64_t PolicyEngine::base_hash() const { return model().folder_hash(); }

absl::StatusOr<std::shared_ptr<const PublishedWeights>> PolicyEngine::Publish(uint64_t version) {
  std::shared_ptr<PublishedWeights> snapshot;
  const absl::Status status = Compute("publishing weights", [&] {
    ShardedModel& model = trained();
    const at::ScalarType type = model.options().compute_dtype;
    snapshot =
        std::make_shared<PublishedWeights>(version, type == at::kBFloat16 ? Dtype::kBF16 : Dtype::kF32, snapshots_);
    std::vector<int> first_tensor;  // of each group, in the manifest
    int tensors = 0;
    for (const ParameterGroup& group : model.layout().groups) {
      first_tensor.push_back(tensors);
      tensors += static_cast<int>(group.parameters.size());
    }
    std::optional<DeviceHashes> hashes;
    for (const ParameterShard& piece : model.parameter_shards()) {
      const OwnedRange own = model.owned(piece.group, model.process_group().rank());
      const int64_t begin = std::max(piece.shard_offset, own.offset);
      const int64_t end = std::min(piece.shard_offset + piece.count, own.offset + own.count);
      if (begin >= end) continue;
      if (model.options().device.is_meta()) {
        snapshot->Count(end - begin);
        continue;
      }
      const int tensor = first_tensor[piece.group] + piece.parameter;
      const int64_t position = piece.begin + (begin - piece.shard_offset);
      const at::Tensor to =
          at::from_blob(snapshot->Add(tensor, position, end - begin), {end - begin}, at::TensorOptions().dtype(type));
      const at::Tensor from = model.shard(piece.group).narrow(0, begin, end - begin);
      if (!from.is_cuda()) {
        to.copy_(from);
        continue;
      }
      // The device hashes what it has, so that the hash proves this copy as well.
      if (!hashes.has_value()) hashes.emplace(tensors, from.device());
      for (int64_t done = 0; done < from.numel(); done += kConvertedAtOnce) {
        const int64_t count = std::min(kConvertedAtOnce, from.numel() - done);
        const at::Tensor part = from.narrow(0, done, count).to(type);
        hashes->Add(tensor, position + done, part);
        to.narrow(0, done, count).copy_(part);
      }
    }
    if (hashes.has_value()) snapshot->SetHashes(hashes->Wait());
    return absl::OkStatus();
  });
  QUARTET_RETURN_IF_ERROR(status);
  return snapshot;
}

}  // namespace quartet
