// From scheduled chunks to logits: the part of an engine that computes. It has the KV cache; weights are gathered, and
// partial sums exchanged, where ranks share a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/memory/ledger.h"
#include "core/model/decoder/decoder.h"
#include "rollout/engine/cache/kv_cache.h"
#include "rollout/engine/graphs/decode_graphs.h"
#include "rollout/engine/graphs/graph_recorder.h"
#include "rollout/engine/scheduling/scheduler.h"
#include "rollout/engine/share_exchange.h"
#include "rollout/engine/weights/engine_weights.h"

namespace quartet {

struct ForwardOptions {
  int64_t max_num_seqs = 0;  // that may be in a forward, and rows of logits that are made at once
  int64_t max_model_len = 0;
  NewGraphRecorder new_recorder;  // null: nothing is recorded
};

// N rows of logits, V vocabulary. One thread.
class ForwardPass {
 public:
  // Logits of rows [first, first + count) of those that were asked for.
  using UseLogits = std::function<void(size_t first, size_t count, const at::Tensor& logits)>;

  // All outlive it. `exchange` is that of a tensor-parallel rank, else null.
  ForwardPass(ForwardOptions options, EngineWeights* weights, const ShareExchange* exchange, Ledger* ledger);

  // Blocks that the cache has beside those of sequences.
  int64_t spare_blocks() const { return records_ ? 1 : 0; }
  // For sequences' blocks [0, blocks). Throws OutOfMemoryError.
  void TakeCache(const KvCacheShape& shape, int64_t blocks);
  void DropCache();
  bool has_cache() const { return cache_.has_value(); }
  const KvCache& cache() const { return *cache_; }
  void Copy(const BlockCopy& copy) { cache_->Copy(copy); }

  // Computes the chunks' tokens, laid end to end. The logits after the last token of each chunk that ends its sequence:
  // fp32 [N, V], on the device until the next call (of a share, where the CPU can read them, as its exchange has
  // gathered them); undefined where there is none. `use` is given those of the tokens `rows` of the batch, some at a
  // time, where the CPU can read them, before. At stage 3 a rank without chunks takes part in every gather.
  at::Tensor Run(const std::vector<ScheduledChunk>& chunks, const std::vector<int64_t>& rows, const UseLogits& use);

  // Records forwards of sequences that decode, over the cache and with the weights that there are now, if both are and
  // it has not been done. To be called once either has been taken or committed; until then Run records nothing and
  // replays nothing that reads from elsewhere. Nothing happens where nothing can be recorded: without a recorder, where
  // ranks share the model, and where CudaPagedAttention does not fit. Throws OutOfMemoryError, and what LibTorch
  // throws.
  void Record();
  // Null where nothing is recorded.
  const DecodeGraphs* graphs() const { return graphs_.has_value() ? &*graphs_ : nullptr; }
  // Forwards that were replayed.
  int64_t replays() const { return replays_; }

 private:
  at::Tensor ThroughBlocks(const WholeWeights& weights, const RotaryTable& rotary, PagedAttention& attention,
                           at::Tensor hidden_TD) const;

  const ForwardOptions options_;
  EngineWeights* const weights_;
  const ShareExchange* const exchange_;
  SumPartials sum_partials_;  // tensor-parallel, else empty
  Ledger* const ledger_;
  const bool records_;
  std::optional<KvCache> cache_;
  std::optional<DecodeGraphs> graphs_;
  int64_t recorded_places_ = 0;  // of the weights
  int64_t replays_ = 0;
};

}  // namespace quartet
