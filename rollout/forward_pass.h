// From scheduled chunks to logits: the part of an engine that computes. It has the KV cache; weights are gathered, and
// partial sums exchanged, where ranks share a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/model/decoder.h"
#include "core/zero/ledger.h"
#include "rollout/engine_weights.h"
#include "rollout/kv_cache.h"
#include "rollout/scheduler.h"
#include "rollout/share_exchange.h"

namespace quartet {

// N rows of logits, V vocabulary. One thread.
class ForwardPass {
 public:
  // Logits of rows [first, first + N) of those that were asked for.
  using UseLogits = std::function<void(size_t first, const at::Tensor& logits_NV)>;

  // All outlive it. `exchange` is that of a tensor-parallel rank, else null. No more than `most_rows` rows of logits are
  // made at once.
  ForwardPass(EngineWeights* weights, const ShareExchange* exchange, int64_t most_rows, Ledger* ledger);

  // Throws OutOfMemoryError.
  void TakeCache(const KvCacheShape& shape, int64_t blocks);
  void DropCache() { cache_.reset(); }
  bool has_cache() const { return cache_.has_value(); }
  void Copy(const BlockCopy& copy) { cache_->Copy(copy); }

  // Computes the chunks' tokens, laid end to end. The logits after the last token of each chunk that ends its sequence:
  // fp32 [N, V], where the CPU can read them (of a share, as its exchange has gathered them); undefined where there is
  // none. `use` is given those of the tokens `rows` of the batch, some at a time, before. At stage 3 a rank without
  // chunks takes part in every gather.
  at::Tensor Run(const std::vector<ScheduledChunk>& chunks, const std::vector<int64_t>& rows, const UseLogits& use);

 private:
  at::Tensor OnHost(const at::Tensor& values) const;

  EngineWeights* const weights_;
  const ShareExchange* const exchange_;
  SumPartials sum_partials_;  // tensor-parallel, else empty
  const int64_t most_rows_;
  Ledger* const ledger_;
  std::optional<KvCache> cache_;
};

}  // namespace quartet
