// Inside of ShardedModel, shared with TrainableModel only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/hardware/meta_device.h"
#include "core/safetensors/reader.h"
#include "core/zero/sharded/flat_layout.h"
#include "core/zero/sharded/sharded_model.h"

namespace quartet {

struct GatheredGroup::State {
  std::vector<at::Tensor> tensors;
  at::Tensor buffer;  // freed with this; undefined where the group stays whole
  ~State();
};

// How forwards come by a group's parameters, whole and in the compute type; the same for all groups of a model.
enum class ComputeWeights {
  kGatheredFromShards,  // gathered when needed, from the shards of all ranks
  kGatheredFromCopies,  // gathered when needed, from copies of them in the compute type (adam_offload)
  kWhole,               // always there; the shard is this rank's part of that very memory
  kWholeCopy,           // always there, beside the shard, which has another type or place
};

// What this rank holds of a group from step to step.
struct ShardedGroup {
  // Master weights, which the optimizer changes, or all there is of a frozen model.
  at::Tensor shard;
  // The whole group in the compute type, or what gathers start from, the shard in any type and place; may be `shard`
  // itself. Follows it by RefreshComputeWeights.
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
  ComputeWeights compute_weights = ComputeWeights::kGatheredFromShards;
  std::vector<ShardedGroup> groups;  // by group
  std::vector<ParameterShard> parameter_shards;
  std::unique_ptr<ShardedModel> adapters;  // null: none
  bool hashes_folder = false;              // as others will have to know what it is that adapters belong to
  uint64_t folder_hash = 0;
  std::vector<std::string> file_stamps;  // of the weights' files when they were read
  bool are_new_adapters = false;         // this is no folder's model, but drawn

  // The gather under way.
  struct Pending {
    int group;
    at::Tensor buffer;
    bool is_refill = false;  // `buffer` was the group's `refill`
    std::unique_ptr<CollectiveWork> work;
  };
  std::optional<Pending> pending;

  // Whether this rank tells of what is read.
  bool logs() const { return world->rank() == 0 && options.tensor_parallel.rank == 0; }
  // Elements [shard_begin, shard_begin + flat.shard) of a group's flat buffer are this rank's shard.
  int64_t shard_begin(int group) const { return shard->rank() * flat[group].shard; }
  bool gathers() const {
    return compute_weights == ComputeWeights::kGatheredFromShards ||
           compute_weights == ComputeWeights::kGatheredFromCopies;
  }
  // Of master weights, gradients and optimizer state.
  at::ScalarType state_dtype() const { return WideType(options.compute_dtype); }
  at::ScalarType shard_dtype() const { return options.trainable ? state_dtype() : options.compute_dtype; }
  MemoryTier shard_tier() const {
    return (options.trainable ? options.adam_offload : options.offload_param) ? MemoryTier::kHost : MemoryTier::kDevice;
  }

  // Whether the host tier is other memory than the device's; whether shards are there.
  bool host_is_apart() const { return ComputeDevice(options.device) != at::kCPU; }
  bool shard_is_apart() const { return host_is_apart() && shard_tier() == MemoryTier::kHost; }

  // Flat and zero, in either tier: on the model's device, or in host memory that its copies reach at full speed.
  at::Tensor Zeros(MemoryTier tier, MemoryCategory category, int64_t numel, at::ScalarType dtype) const;

  // Flat and zero, one a group, as the shards of a model that is not trained. They share one block of memory.
  std::vector<at::Tensor> NewBuffers(MemoryTier tier) const;

  ComputeWeights ChooseComputeWeights() const;
  // Zero, of a model that is trained.
  ShardedGroup NewTrainedGroup(int group) const;

  // This rank's shard of a whole flat buffer of `group`.
  at::Tensor OwnShard(int group, const at::Tensor& buffer) const;
  // The parameters as views of a whole flat buffer.
  std::vector<at::Tensor> Views(int group, const at::Tensor& buffer) const;

  int replicas() const { return replica == nullptr ? 1 : replica->size(); }
  // What `rank` owns: an equal share of its shard for each replica that has it.
  OwnedRange Owned(int group, int rank) const;
  void CompleteFromOwners(int group, const at::Tensor& values);

  GatheredGroup Gather(int group, int prefetch);
  void StartGather(int group);
  // Waits for the gather under way, if any, and gives its memory back; for error paths.
  void DropPending() noexcept;
  // The whole of what has `part`, laid out as the group's shard, on this rank, in the compute type. A collective over
  // the shard group.
  GatheredGroup GatherCopy(int group, const at::Tensor& part);
  // Makes `compute` follow `shard`, after a change of the latter. Where groups stay whole a collective over the shard
  // group.
  void RefreshComputeWeights(int group);

  // What a group of a model that does not gather is computed with: always there.
  std::vector<at::Tensor> WholeGroup(int group) const { return Views(group, groups[group].compute); }
  // A block's weights, of tensors of its group and of its adapters' group.
  BlockWeights Block(int group, const std::vector<at::Tensor>& tensors,
                     const std::vector<at::Tensor>& adapter_tensors) const;
  // Which group of `adapters` is of that block's group: the embedding's has none.
  static int adapters_group(int group) { return group - 1; }
  // Those adapters; none where there are none.
  std::vector<at::Tensor> AdaptersOf(int group) const;
  // Whether the scalar head is the adapters'; its weight then.
  bool has_adapters_head() const { return config.lora.has_value() && config.lora->has_head; }
  // Whether that is of a folder of its own, so that none is asked of the model's.
  bool replaces_head() const { return has_adapters_head() && !config.lora->are_new; }
  at::Tensor AdaptersHead() const;

  // Whether the folder has no scalar head where one is wanted, and does not say that it has.
  bool DrawsHead(const CheckpointReader& reader) const;
  // From the folder's files (a head that they do not have, and new adapters but for their head, which is the model's:
  // drawn), elements [begin, begin + out.numel()) of a group's flat buffer; what is padding stays as it is. `reader` is
  // null where new adapters have no head. Errors as ReadPiece's. Adds to `hash` what folder_hash is of.
  absl::Status Read(const CheckpointReader* reader, int group, int64_t begin, const at::Tensor& out,
                    uint64_t* hash) const;

  // Of a parameter's first element among those of all parameters, whole, in their order.
  int64_t FirstPosition(int group, int parameter) const;

  // Positions of the tokens within their sequences. Throws if `batch` contradicts itself.
  at::Tensor Positions(const PackedSequences& batch) const;
};

}  // namespace quartet
