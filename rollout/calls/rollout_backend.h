// What the rollout's fronts (gRPC, HTTP) ask of the rollout behind them. LibTorch-free and gRPC-free.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time/deadline.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/rollout.pb.h"
#include "rollout/calls/blocking_call.h"
#include "rollout/calls/rollout_metrics.h"

namespace quartet {

// Thread safe.
class RolloutBackend {
 public:
  virtual ~RolloutBackend() = default;

  // UNAVAILABLE while the model is loading; everything else is for afterwards.
  virtual absl::Status CheckServing() const = 0;

  // FAILED_PRECONDITION while there are no weights to generate with, but for those that WakeUp brings back.
  virtual absl::Status CheckWeights() const = 0;

  // UNAVAILABLE while there are none, also where WakeUp brings them back.
  virtual absl::Status CheckHealth() const = 0;

  // Of the model's folder; null where that has none.
  virtual const Tokenizer* tokenizer() const = 0;
  virtual int64_t vocab_size() const = 0;
  // Prompt and answer together, tokens.
  virtual int64_t max_model_len() const = 0;
  // That guests may have at once, and so one of them ask for; and their calls.
  virtual int64_t max_guest_sequences() const = 0;
  virtual int64_t max_guest_calls() const = 0;
  // That end an answer unless ignore_eos is set, and those that always do.
  virtual std::set<int32_t> eos_token_ids() const = 0;
  virtual std::set<int32_t> stop_token_ids() const = 0;

  // Whether all this can be generated: INVALID_ARGUMENT, as Rollout.Generate says.
  virtual absl::Status Check(const SamplingParams& sampling, const std::vector<Prompt>& prompts) const = 0;

  // FAILED_PRECONDITION where the weights in use are not those of `version`.
  virtual absl::Status CheckVersion(uint64_t version) const = 0;

  // Begins a call that holds to Check, with the weights that are in use then; their version goes to `version`. Else as
  // BlockingCall::Begin.
  virtual absl::StatusOr<std::unique_ptr<BlockingCall>> Begin(const GenerateHeader& header, std::vector<Prompt> prompts,
                                                              std::stop_token gone, uint64_t* version) = 0;

  virtual absl::StatusOr<GenerationState> State(const Deadline& deadline) = 0;
};

}  // namespace quartet
