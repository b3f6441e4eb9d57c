// Generation on one rank: a decoder, a paged KV cache, a scheduler and a sampler. Knows no gRPC; its header no
// LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/parameter_layout.h"
#include "core/safetensors/reader.h"
#include "core/service/rank_context.h"
#include "core/zero/ledger.h"
#include "proto/rollout.pb.h"

namespace quartet {

struct RolloutEngineOptions {
  std::string model;           // Hugging Face folder
  std::string dtype = "bf16";  // or "fp32"; of weights, activations and cache
  // 0: every rank holds the whole model and generates alone. 3: parameters are sharded over the ranks, gathered block
  // by block, and all ranks step together.
  int zero_stage = 0;
  int64_t kv_cache_bytes = int64_t{1} << 30;  // of this rank; less is taken where less can be used
  int64_t block_size = 16;                    // tokens; a multiple of 16
  int64_t max_model_len = 2048;               // tokens of prompt and answer together
  int64_t max_num_seqs = 256;                 // running at once
  int64_t max_num_batched_tokens = 2048;      // of one forward
  std::vector<int32_t> stop_token_ids;        // beside the model's end tokens and the request's
};

// Samples [first_sample, first_sample + samples) of one prompt.
struct GenerationTask {
  uint64_t prompt_index = 0;
  std::vector<int32_t> ids;
  int32_t first_sample = 0;
  int32_t samples = 1;
};

// `count` elements of tensor `tensor` (an index into RolloutEngine::tensors()), from `begin` on, row-major, that this
// rank keeps; `data` holds them in the resident type.
struct StagedRange {
  int32_t tensor;
  int64_t begin;
  int64_t count;
  void* data;
};

// A second set of this rank's weights, to be filled from any thread and then committed.
class WeightStaging {
 public:
  virtual ~WeightStaging() = default;
  virtual const std::vector<StagedRange>& ranges() const = 0;
};

struct RolloutEngineStats {
  int64_t steps = 0;  // forwards
  int64_t preemptions = 0;
  int64_t generated_tokens = 0;
};

// Load, Generate and Commit: one thread, and with zero_stage 3 on all ranks in the same order. The rest: any thread.
class RolloutEngine {
 public:
  // `context.store` is where the ranks meet; `ledger` must outlive the engine. INVALID_ARGUMENT names the option, its
  // value and what is allowed; the model's own errors name file and tensor.
  static absl::StatusOr<std::unique_ptr<RolloutEngine>> Load(const RolloutEngineOptions& options,
                                                             const RankContext& context, Ledger* ledger);
  virtual ~RolloutEngine() = default;

  // Whether `task` can be served with `sampling`: INVALID_ARGUMENT names field, value and what is allowed,
  // RESOURCE_EXHAUSTED where it could never fit into the cache.
  virtual absl::Status Check(const SamplingParams& sampling) const = 0;
  virtual absl::Status Check(const SamplingParams& sampling, const GenerationTask& task) const = 0;

  // Calls `done` for each sequence as it ends, on this thread. With zero_stage 3 a rank without tasks must call too.
  // After an error nothing is left running; at stage 3 the process group is not to be trusted then.
  virtual absl::Status Generate(const SamplingParams& sampling, const std::vector<GenerationTask>& tasks,
                                const std::function<void(GeneratedSequence)>& done) = 0;

  // All tensors of the model, in the order of its parameter groups.
  virtual const std::vector<ParameterSpec>& tensors() const = 0;
  // Element type of staged ranges: kBF16 or kF32.
  virtual Dtype resident_dtype() const = 0;

  // Memory for a new version beside the present one, uninitialised.
  virtual std::unique_ptr<WeightStaging> NewStaging() = 0;
  // Puts `staging` in use as `version`.
  virtual void Commit(std::unique_ptr<WeightStaging> staging, uint64_t version) = 0;
  // Of the weights in use; 0 as loaded from disk.
  virtual uint64_t version() const = 0;

  virtual int64_t vocab_size() const = 0;
  // Ends a sequence, unless ignore_eos.
  virtual const std::vector<int64_t>& eos_token_ids() const = 0;
  virtual RolloutEngineStats stats() const = 0;
};

}  // namespace quartet
