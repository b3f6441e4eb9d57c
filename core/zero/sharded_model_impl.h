// Inside of ShardedModel, shared with TrainableModel only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/hardware/meta_device.h"
#include "core/safetensors/reader.h"
#include "core/zero/flat_layout.h"
#include "core/zero/sharded_model.h"

namespace quartet {

struct GatheredGroup::State {
  std::vector<at::Tensor> tensors;
  at::Tensor buffer;  // freed with this; undefined where the group is resident whole
  ~State();
};

// How forwards come by a group's parameters, whole and in the compute type; the same for all groups of a model.
enum class ComputeWeights {
  kGatheredFromResident,  // gathered when needed, from what is resident on every rank
  kGatheredFromCopy,      // gathered when needed, from a copy of it in the compute type (adam_offload)
  kWholeResident,         // always there; what is resident is this rank's part of that very memory
  kWholeCopy,             // always there, beside what is resident, which has another type or place
};

// What this rank holds of a group from step to step.
struct HeldGroup {
  // This rank's part: master weights, which the optimizer changes, or all there is of a frozen model.
  at::Tensor resident;
  // The whole group in the compute type, or what gathers start from, this rank's part in any type and place; may be
  // `resident` itself. Follows it by RefreshComputeWeights.
  at::Tensor compute;
  // Where defined, the (freed) buffer into which the group is gathered next: a graph refers to its memory.
  at::Tensor refill;
};

struct ShardedModel::Impl {
  std::string folder;
  ModelConfig config;
  ParameterLayout layout;
  ShardedModelOptions options;
  // A model is cut into parts over `shard`, and each part is the same on all of `replica` (null: this rank alone has
  // it). At stage 0 the shard is this rank, the replicas are all.
  ProcessGroup* world = nullptr;
  ProcessGroup* shard = nullptr;
  ProcessGroup* replica = nullptr;
  std::unique_ptr<ProcessGroup> alone;  // the shard at stage 0
  Ledger* ledger = nullptr;

  std::vector<FlatGroup> flat;
  ComputeWeights compute_weights = ComputeWeights::kGatheredFromResident;
  std::vector<HeldGroup> held;  // by group
  std::vector<ResidentPiece> pieces;

  // The gather under way.
  struct Pending {
    int group;
    at::Tensor buffer;
    bool is_refill = false;  // `buffer` was the group's `refill`
    std::unique_ptr<CollectiveWork> work;
  };
  std::optional<Pending> pending;

  // Elements [part_begin, part_begin + flat.shard) of a group's flat buffer are resident here.
  int64_t part_begin(int group) const { return shard->rank() * flat[group].shard; }
  bool gathers() const {
    return compute_weights == ComputeWeights::kGatheredFromResident ||
           compute_weights == ComputeWeights::kGatheredFromCopy;
  }
  // Of master weights, gradients and optimizer state.
  at::ScalarType state_dtype() const { return WideType(options.compute_dtype); }
  at::ScalarType resident_dtype() const { return options.trainable ? state_dtype() : options.compute_dtype; }
  MemoryTier resident_tier() const {
    return (options.trainable ? options.adam_offload : options.offload_param) ? MemoryTier::kHost : MemoryTier::kDevice;
  }

  // Whether the host tier is other memory than the device's; whether what is resident is there.
  bool host_is_apart() const { return ComputeDevice(options.device) != at::kCPU; }
  bool resident_is_apart() const { return host_is_apart() && resident_tier() == MemoryTier::kHost; }

  // Flat and zero, in either tier: on the model's device, or in host memory that its copies reach at full speed.
  at::Tensor Zeros(MemoryTier tier, MemoryCategory category, int64_t numel, at::ScalarType dtype) const;

  // Flat and zero, one a group, as what is resident of a model that is not trained. They share one block of memory.
  std::vector<at::Tensor> NewBuffers(MemoryTier tier) const;

  ComputeWeights ChooseComputeWeights() const;
  // Zero, of a model that is trained.
  HeldGroup NewTrainedGroup(int group) const;

  // This rank's part of a whole flat buffer of `group`.
  at::Tensor OwnPart(int group, const at::Tensor& buffer) const;
  // The parameters as views of a whole flat buffer.
  std::vector<at::Tensor> Views(int group, const at::Tensor& buffer) const;

  int replicas() const { return replica == nullptr ? 1 : replica->size(); }
  // What `rank` owns: an equal share of its part for each replica that has it.
  OwnedRange Owned(int group, int rank) const;
  void CompleteFromOwners(int group, const at::Tensor& values);

  GatheredGroup Gather(int group, int prefetch);
  void StartGather(int group);
  // Waits for the gather under way, if any, and gives its memory back; for error paths.
  void DropPending() noexcept;
  // The whole of what has `part`, laid out as what is resident of the group, on this rank, in the compute type. A
  // collective over the shard.
  GatheredGroup GatherCopy(int group, const at::Tensor& part);
  // Makes `compute` follow `resident`, after a change of the latter. Where groups stay whole a collective over the
  // shard.
  void RefreshComputeWeights(int group);

  // From the folder's files (a head that they do not have: drawn), elements [begin, begin + out.numel()) of a group's
  // flat buffer; what is padding stays as it is. Errors as ReadPiece's.
  absl::Status Read(const CheckpointReader& reader, int group, int64_t begin, const at::Tensor& out) const;

  // Positions of the tokens within their sequences. Throws if `batch` contradicts itself.
  at::Tensor Positions(const PackedSequences& batch) const;
};

}  // namespace quartet
