// A decoder whose parameters are sharded over ranks and gathered one group at a time.
//
// Groups (core/model/parameter_layout.h) lie in flat buffers: each tensor aligned to 256 bytes of the compute type, the
// whole padded to world size x alignment; rank r keeps the r-th equal part (fp32 master for a trainable model, the
// compute type for a frozen one). Stage 3 keeps nothing else and gathers into a short-lived buffer; stage 2 also keeps
// every group whole in the compute type. On a mesh the parts are spread over one replica's ranks, and every replica has
// them all: what MiCS and FSDP's HYBRID_SHARD do. Stage 0 is the mesh whose replicas are single ranks.
//
// Invariants, tested: gathered bytes are at most two groups at any moment and 0 outside a call; nothing here grows with
// the number of blocks but the shards and the saved block inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/comm/mesh.h"
#include "core/comm/process_group.h"
#include "core/kernels/cpu/attention/sequence_rows.h"
#include "core/memory/ledger.h"
#include "core/model/decoder/decoder.h"
#include "core/model/lora.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/model/tensor_parallel.h"
#include "core/safetensors/reader.h"

namespace quartet {

struct ShardedModelOptions {
  HeadKind head = HeadKind::kVocabulary;
  int zero_stage = 3;                            // 0, 2 or 3
  at::ScalarType compute_dtype = at::kBFloat16;  // or at::kFloat; at::kDouble for tests
  bool trainable = false;                        // fp32 master weights
  // Trainable models, at stages 2 and 3: master weights, gradients and optimizer state are in host memory, where the
  // update runs; the device keeps the parameters in the compute type only.
  bool adam_offload = false;
  // At stage 3 (trainable models: with adam_offload): what gathers start from is in host memory too, copied at each.
  bool offload_param = false;
  at::Device device = at::kCPU;
  // Which share of the model this rank has. A share is a model of its own here: frozen, at stage 0, of a group that is
  // this rank alone; config() describes it, layout() its slices. Forward, which knows no partial sums, is not for it.
  TensorParallel tensor_parallel;
  // Token ids that there are, those of the tokenizer, at most vocab_size: the rows of the vocabulary behind them weigh
  // nothing (VocabularyLogits). 0: vocab_size.
  int64_t vocabulary = 0;
  // What the folder calls a scalar head, in place of its config.json's ModelConfig::scalar_head; "": as that.
  std::string scalar_head;
  // The adapters that a model's folder is given, or that a folder of adapters must have. New ones add nothing: A is
  // drawn with `seed` as PEFT draws it, B is 0.
  std::optional<LoraOptions> lora;
  // A scalar head that the folder does not have: true = drawn from N(0, 1 / (hidden + 1)) with `seed`, unless
  // config.json says that it has one; else an error.
  bool initialize_missing_head = false;
  uint64_t seed = 0;
};

// Elements [begin, begin + count) of one parameter that are in this rank's shard.
struct ParameterShard {
  int group;
  int parameter;  // index into the group's parameters
  int64_t begin;  // element of the parameter, row-major
  int64_t count;
  int64_t shard_offset;  // element of this rank's shard of the group's flat buffer
};

// Elements of a group's flat buffer, whose offsets are those of MakeFlatGroup at any world size.
struct OwnedRange {
  int64_t begin;   // of the whole buffer
  int64_t offset;  // of the shard of the rank that owns them
  int64_t count;
};

// Sequences laid end to end, each token once where they begin alike (core/kernels/cpu/attention/sequence_rows.h).
struct PackedSequences {
  at::Tensor ids_T;                 // int64
  std::vector<int64_t> cu_seqlens;  // the own tokens of sequence i are [cu_seqlens[i], cu_seqlens[i + 1])
  std::vector<int64_t> shared;      // how many it has of sequence i - 1; empty: none
  SequenceRows rows() const { return {cu_seqlens, shared}; }
};

class ShardedModel;

// The whole of one group's parameters, until destroyed. Move only.
class GatheredGroup {
 public:
  GatheredGroup(GatheredGroup&&) noexcept;
  GatheredGroup& operator=(GatheredGroup&&) noexcept;
  ~GatheredGroup();
  // In the order of the group's parameters; views into one buffer, compute type, no gradient. Dead after destruction.
  const std::vector<at::Tensor>& tensors() const;

 private:
  friend class ShardedModel;
  struct State;
  explicit GatheredGroup(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// One thread; all ranks in step (Gather is a collective at stage 3).
class ShardedModel {
 public:
  // Each rank reads only the byte ranges of its part of `folder`'s safetensors. A folder of adapters
  // (core/model/lora.h) is its model, frozen, with adapters(); so is a model with options.lora. Errors name file and
  // tensor: missing, other shape, unsupported type; so does one where a vocabulary head is asked for of a folder with a
  // scalar one. On the meta device only config.json is read.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Load(const std::string& folder,
                                                            const ShardedModelOptions& options, ProcessGroup* group,
                                                            Ledger* ledger);
  // Sharded over mesh->shard(), the same on all of mesh->replica(), which at stage 0 must be this rank alone.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Load(const std::string& folder,
                                                            const ShardedModelOptions& options, Mesh* mesh,
                                                            Ledger* ledger);
  ~ShardedModel();

  const ModelConfig& config() const;
  const ParameterLayout& layout() const;
  const ShardedModelOptions& options() const;
  // Of the rows of the vocabulary head that this rank has, those that stand for tokens: the first ones.
  int64_t vocabulary() const;
  ProcessGroup& process_group();  // of all ranks

  // The adapters that forwards add, or null: a model of their own, of the layout of MakeLoraLayout, that keeps them
  // whole in the compute type (stage 0, or 2). Where the options say trainable they are what is trained.
  ShardedModel* adapters() const;
  // A block's weights, with its adapters, of `tensors`, in the order of its group's parameters.
  BlockWeights Block(int group, const std::vector<at::Tensor>& tensors) const;
  // Puts the adapters that there are now into a block's weights.
  void Adapt(int group, BlockWeights* weights) const;
  // Of a model with adapters, which belong to it alone: a hash of its elements as its folder has them, the same
  // whatever type and ranks it is loaded with. Of a share of a model this rank's term: those of all shares add up to
  // it. 0 on the meta device, and without adapters.
  uint64_t folder_hash() const;
  Ledger& ledger();

  // Waits for (or starts) the gather of `group`, and starts that of `prefetch` (-1: none) behind it.
  GatheredGroup Gather(int group, int prefetch = -1);

  // Hidden states after the last block and the final norm, [T, D], without gradient; then `use` is called with them and
  // the head's weight ([V, D] or [1, D]) while the head is gathered. With no tokens (T = 0) it takes part in the
  // collectives only, without calling `use`. Not `with_adapters`: as if the model had none, but for a head that is
  // theirs.
  void Forward(const PackedSequences& batch,
               const std::function<void(const at::Tensor& hidden_TD, const at::Tensor& head_weight)>& use,
               bool with_adapters = true);

  // What this rank holds. Master type (fp32) when trainable, else compute type. Flat, one per group.
  const std::vector<ParameterShard>& parameter_shards() const;
  const at::Tensor& shard(int group) const;
  // What `rank` owns of a group: no element is owned by two ranks, also where several hold it.
  OwnedRange owned(int group, int rank) const;
  // Of `values`, laid out like shard(group), every rank has what it owns; brings the rest here. Collective.
  void CompleteFromOwners(int group, const at::Tensor& values);

  // The group's parameters, in their order, as views of `buffer`, which holds the group whole: shard(group) at stage
  // 0. Any thread.
  std::vector<at::Tensor> Views(int group, const at::Tensor& buffer) const;

  // A second set of a frozen model's weights, laid out like its shards, in memory of the host: to be filled
  // piece by piece with elements of the shards' type, by any thread, and then computed with from one forward to the
  // next. Where host memory is not the shards' memory (stages_apart), elements are copied from there over these (into
  // new ones after ReleaseShards), so that no second set is on the device; else the buffers take their place.
  // SwapWeights returns the set that is not in use then, to be filled anew, empty where ReleaseShards has given it
  // back: memory that a process has touched before costs far less to write than new pages.
  std::vector<at::Tensor> NewStagedBuffers() const;
  bool stages_apart() const;
  std::vector<at::Tensor> SwapWeights(std::vector<at::Tensor> staged);
  // Gives the shards of a frozen model back. Until SwapWeights there are no weights: nothing may gather them.
  void ReleaseShards();
  // What Load read, into NewStagedBuffers; this rank alone, from the folder as it is now. Errors as Load's, and
  // FAILED_PRECONDITION where a file of the weights is another by its size or time of change, but for a model with
  // adapters. Returns this rank's term of folder_hash: at stage 3 those of all ranks add up to it, at stage 0 each is
  // it.
  absl::StatusOr<uint64_t> ReadShards(const std::vector<at::Tensor>& buffers) const;

 private:
  friend class TrainableModel;
  friend class ShardedGradient;
  friend class ShardedOptimizer;
  friend class WeightsAverage;
  struct Impl;
  // Returns those that were there, or none.
  std::vector<at::Tensor> SwapShards(std::vector<at::Tensor> buffers);
  explicit ShardedModel(std::unique_ptr<Impl> impl);
  // `impl` has its process groups.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Load(const std::string& folder,
                                                            const ShardedModelOptions& options, Ledger* ledger,
                                                            std::unique_ptr<Impl> impl);
  // The weights of impl->folder. `open` makes impl->config and impl->layout, and opens the files, but on the meta
  // device, where it returns null.
  using OpenFolder = std::function<absl::StatusOr<std::unique_ptr<CheckpointReader>>(Impl*)>;
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Read(std::unique_ptr<Impl> impl, const OpenFolder& open);
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenModel(const std::string& folder, Impl* impl);
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenAdaptersOf(const Impl& model, Impl* impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet
