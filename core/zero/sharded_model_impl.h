// Inside of ShardedModel, shared with TrainableModel only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/meta_device.h"
#include "core/safetensors/reader.h"
#include "core/zero/flat_layout.h"
#include "core/zero/sharded_model.h"

namespace quartet {

struct GatheredGroup::State {
  std::vector<at::Tensor> tensors;
  at::Tensor buffer;  // freed with this; undefined where the group is resident whole
  ~State();
};

struct ShardedModel::Impl {
  std::string folder;
  ModelConfig config;
  ParameterLayout layout;
  ShardedModelOptions options;
  ProcessGroup* world = nullptr;
  ProcessGroup* shard = nullptr;    // each holds a part
  ProcessGroup* replica = nullptr;  // all hold the same part; null: this rank alone does
  Ledger* ledger = nullptr;

  std::vector<FlatGroup> flat;
  // Whether `resident` holds whole groups on every rank rather than this rank's part.
  bool resident_is_whole = false;
  std::vector<at::Tensor> resident;
  // What gathers start from: this rank's part on any device and in any type. `resident` itself, but for trainable
  // models with adam_offload, which keep a copy in the compute type nearer to the device. Empty where `whole` is not.
  std::vector<at::Tensor> source;
  // Groups that are never gathered: whole and in the compute type; may share memory with `resident`. Empty at stage 3,
  // but for a group of one whose resident type is the compute type.
  std::vector<at::Tensor> whole;
  std::vector<ResidentPiece> pieces;
  // Where defined, the (freed) buffer into which that group is gathered next: a graph refers to its memory.
  std::vector<at::Tensor> refill;

  // The gather under way.
  struct Pending {
    int group;
    at::Tensor buffer;
    bool is_refill = false;  // `buffer` was in `refill`
    std::unique_ptr<CollectiveWork> work;
  };
  std::optional<Pending> pending;

  int64_t resident_begin(int group) const { return resident_is_whole ? 0 : shard->rank() * flat[group].shard; }
  int64_t resident_count(int group) const { return resident_is_whole ? flat[group].total : flat[group].shard; }
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

  // Flat and zero, one a group, as `resident` of a model that is not trained. They share one block of memory.
  std::vector<at::Tensor> NewBuffers(MemoryTier tier) const;

  // This rank's part of a whole flat buffer of `group`.
  at::Tensor OwnPart(int group, const at::Tensor& buffer) const;
  // The parameters as views of a whole flat buffer.
  std::vector<at::Tensor> Views(int group, const at::Tensor& buffer) const;

  int replicas() const { return replica == nullptr ? 1 : replica->size(); }
  // What `rank` owns: of its part all, or, where replicas hold the same part, an equal share.
  OwnedRange Owned(int group, int rank) const;
  void CompleteFromOwners(int group, const at::Tensor& values);

  GatheredGroup Gather(int group, int prefetch);
  void StartGather(int group);
  // Waits for the gather under way, if any, and gives its memory back; for error paths.
  void DropPending() noexcept;
  // The whole of what has `part`, laid out as resident[group], on this rank, in the compute type; at every stage. A
  // collective where the parts are not whole.
  GatheredGroup GatherCopy(int group, const at::Tensor& part);
  // Makes `source` and `whole` follow `resident`, after a change of the latter. Collective at stage 2.
  void FollowResident(int group);

  // From the folder's files (a head that they do not have: drawn), elements [begin, begin + out.numel()) of a group's
  // flat buffer; what is padding stays as it is. Errors as ReadPiece's.
  absl::Status Read(const CheckpointReader& reader, int group, int64_t begin, const at::Tensor& out) const;

  // Position of the parameter `name` in a group's list, -1 if it has none.
  int FindParameter(int group, const std::string& name) const;
  // The positions of the final norm and of the head's weight in layout.head_group.
  int norm_parameter() const { return FindParameter(layout.head_group, "model.norm.weight"); }
  int head_parameter() const;

  // Positions of the tokens within their sequences. Throws if `batch` contradicts itself.
  at::Tensor Positions(const PackedSequences& batch) const;
};

}  // namespace quartet
