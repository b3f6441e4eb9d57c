// From the rows of a forward's logits to tokens: by all of LibTorch's threads, or where the logits are on a GPU and a
// call asks for nothing that is for the CPU (core/kernels/cuda/draw_rows.h), there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/memory/ledger.h"
#include "rollout/engine/running_call.h"
#include "rollout/engine/sampling/sampler.h"
#include "rollout/engine/scheduling/scheduler.h"
#include "rollout/engine/share_exchange.h"

namespace quartet {

// A token of a sequence's prompt, scored from a row of a forward: that of the token before it.
struct PromptToken {
  const Sequence* sequence;
  int64_t position;
  int64_t row;  // of the hidden states
};

// The next token of a sequence, from a row of the logits.
struct Draw {
  Sequence* sequence;
  int64_t row;
};

// One thread.
class RowSampling {
 public:
  using Calls = absl::flat_hash_map<uint64_t, RunningCall>;

  // Rows have `vocab_size` logits, of which the first `vocabulary` are of tokens. `exchange`: of tensor-parallel ranks,
  // each with a part of every row; else null. Both outlive this.
  RowSampling(int64_t vocab_size, int64_t vocabulary, ShareExchange* exchange, Ledger* ledger);

  // Of row i of `logits` what tokens[i] is worth. On the meta device nothing is.
  std::vector<absl::StatusOr<SampledToken>> Score(absl::Span<const PromptToken> tokens, const at::Tensor& logits,
                                                  const Calls& calls);

  // One token of each of `draws`; for calls that want none, anything. With an exchange, whose logits the CPU can read,
  // it is collective, and all ranks get the same.
  std::vector<absl::StatusOr<SampledToken>> DrawAll(const std::vector<Draw>& draws, const at::Tensor& logits,
                                                    const Calls& calls);

  // The row alone, as DrawAll takes it at 0; in memory of its own, where `logits` are.
  static at::Tensor CopyOfRow(const at::Tensor& logits, int64_t row);

 private:
  std::vector<absl::StatusOr<SampledToken>> DrawOnGpu(const std::vector<Draw>& draws, const at::Tensor& logits,
                                                      const Calls& calls);
  absl::StatusOr<SampledToken> DrawToken(const Draw& draw, const at::Tensor& logits, const Calls& calls);
  absl::Span<const float> Row(const at::Tensor& logits, int64_t row, std::vector<float>* joined) const;

  const int64_t vocab_size_, vocabulary_;
  ShareExchange* const exchange_;
  Ledger* const ledger_;
  std::vector<Sampler> samplers_;  // one a thread
};

}  // namespace quartet
