// Generation on one rank: a decoder, a paged KV cache, a scheduler and a sampler. Knows no gRPC; its header no
// LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/memory/ledger.h"
#include "core/model/lora.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/rank/rank_context.h"
#include "core/safetensors/reader.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/rollout.pb.h"
#include "proto/run_config.pb.h"
#include "rollout/engine/engine_stats.pb.h"
#include "rollout/engine/weights/weight_staging.h"

namespace quartet {

// What a plan knows of the device: its memory, and how much of it is taken by what is no tensor.
struct PlannedDevice {
  int64_t bytes = 0;
  int64_t other_bytes = 0;
};

// Samples [first_sample, first_sample + samples) of one prompt. Tasks of one call have the same `sampling`.
struct GenerationTask {
  uint64_t call = 0;
  std::shared_ptr<const SamplingParams> sampling;
  bool stream_tokens = false;
  uint64_t prompt_index = 0;
  std::vector<int32_t> ids;
  int32_t first_sample = 0;
  int32_t samples = 1;
};

// What became of a call's sequences: one has a new token (where the call streams them), one has ended, or the call
// cannot go on and is given up.
struct EngineEvent {
  uint64_t call;
  std::variant<GeneratedTokens, GeneratedSequence, absl::Status> what;
};

// Of the ranks that step together: with zero_stage 3 all, tensor-parallel ranks of one engine, else one alone.
struct StepAgreement {
  int64_t batches = 0;  // the fewest that one of them has
  bool idle = false;    // all are
};

// Load, Add, Cancel, Abort, AgreeOnStep, Step, Sleep, Wake and Commit: one thread. The rest: any thread.
// With zero_stage 3 all ranks step together. Each tensor_parallel_size = t neighbours, [g t, (g + 1) t), are one
// engine, in which each has a share of every matrix (core/model/tensor_parallel.h): they must be given the same calls
// in the same order, and step together; every rank answers.
class RolloutEngine {
 public:
  // `options` is the section `rollout` of a configuration (proto/run_config.proto); what is not set has its default.
  // `context.store` is where the ranks meet; `ledger` must outlive the engine, as must `tokenizer`, to find stop
  // strings with, whose ids alone are drawn; null: stop strings are refused, and every row of the vocabulary is drawn.
  // On the meta device (a plan) an engine takes no memory and counts what it would take of a device that is as
  // `planned`; each token it draws is 0. `lora`: as in ShardedModelOptions. INVALID_ARGUMENT names the option, its
  // value and what is allowed; the model's own errors name file and tensor.
  static absl::StatusOr<std::unique_ptr<RolloutEngine>> Load(const RolloutConfig& options, const RankContext& context,
                                                             Ledger* ledger, const Tokenizer* tokenizer = nullptr,
                                                             const PlannedDevice& planned = {},
                                                             const std::optional<LoraOptions>& lora = std::nullopt);
  virtual ~RolloutEngine() = default;

  // Whether a prompt can be served with `sampling`: INVALID_ARGUMENT names field, value and what is allowed, also where
  // it could never fit into the cache.
  virtual absl::Status Check(const SamplingParams& sampling) const = 0;
  virtual absl::Status Check(const SamplingParams& sampling, const GenerationTask& task) const = 0;

  // Takes a task for which Check holds. It joins the batch in one of the next steps.
  virtual void Add(const GenerationTask& task) = 0;
  // Ends all sequences of a call, wherever they are.
  virtual void Cancel(uint64_t call) = 0;
  // The same; returns them as they are, reason ABORTED.
  virtual std::vector<GeneratedSequence> Abort(uint64_t call) = 0;
  // No sequence runs or waits.
  virtual bool idle() const = 0;

  // What ranks that step together must know of each other to make the same steps; `batches` is what the caller counts
  // alike on all of them. A collective over them; an error is as of Step.
  virtual absl::StatusOr<StepAgreement> AgreeOnStep(int64_t batches) = 0;

  // One forward for everything that runs, and each sequence's next token. With zero_stage 3 all ranks make the same
  // steps, also those that are idle; so do tensor-parallel ranks, which are idle together. After an error nothing is
  // left running; where ranks step together the process group is not to be trusted then.
  virtual absl::StatusOr<std::vector<EngineEvent>> Step() = 0;

  // Gives the cache's memory back and that which is kept for the next version, and with `release_weights` that of the
  // weights, which are lost. What runs waits, and will be computed again; no Step until Wake. What is given back
  // already stays so.
  virtual void Sleep(bool release_weights) = 0;
  // Takes the cache's memory again, and reads weights that were given back from the model's folder where ReadsAgain;
  // others stay lost, and there is no Step until a Commit. RESOURCE_EXHAUSTED where memory cannot be had,
  // Load's errors where the folder cannot be read: the engine goes on sleeping then, as it did. Returns, of a model
  // with adapters that was read, its hash, which is to be that of before; where the model is divided this rank's term.
  virtual absl::StatusOr<std::optional<uint64_t>> Wake() = 0;
  // False from a Sleep that released them until they are read again or committed.
  virtual bool has_weights() const = 0;
  // Whether the folder has what a Sleep releases: at version 0, and of a model with adapters, which stay, at any.
  bool ReadsAgain() const { return version() == 0 || adapters() != nullptr; }

  // The adapters that are added to the model, which alone are staged and committed then; or null.
  virtual const AdapterConfig* adapters() const = 0;
  // Of the model that they belong to (ShardedModel::folder_hash); of a tensor-parallel rank its term.
  virtual uint64_t base_hash() const = 0;
  // Of the model, whole; of a tensor-parallel rank's share its tensors'.
  virtual int64_t model_parameters() const = 0;

  // All tensors that are staged, the model's or its adapters', in the order of its parameter groups; a tensor-parallel
  // rank's slices of them.
  virtual const std::vector<ParameterSpec>& tensors() const = 0;
  // Element type of staged ranges: kBF16 or kF32.
  virtual Dtype resident_dtype() const = 0;

  // Memory for a new version beside the present one, which holds anything: what the version before the present one had,
  // where that is there still.
  virtual std::unique_ptr<WeightStaging> NewStaging() = 0;
  // Takes that memory beforehand, so that no update finds too little of it, or waits for new pages.
  virtual void ReserveStaging() = 0;
  // Puts `staging` in use as `version`; prepares it first, if it is not prepared. Sequences that run go on with what
  // the cache holds of them.
  virtual void Commit(std::unique_ptr<WeightStaging> staging, uint64_t version) = 0;
  // Of the weights in use; 0 as loaded from disk.
  virtual uint64_t version() const = 0;

  // Tokens of prompt and answer together.
  virtual int64_t max_model_len() const = 0;
  // Token ids that prompts may have and answers can have.
  virtual int64_t vocab_size() const = 0;
  // Ends a sequence, unless ignore_eos. Below vocab_size.
  virtual const std::vector<int64_t>& eos_token_ids() const = 0;
  virtual EngineStats stats() const = 0;
  // Adds what is told of a GPU's memory, on one (core/rank/rank_setup.h).
  virtual void DescribeDevice(RankInfo*) const {}
};

}  // namespace quartet
