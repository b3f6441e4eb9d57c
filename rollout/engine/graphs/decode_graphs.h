// Forwards in which each sequence gets one token, recorded for some numbers of sequences: a step of fewer is filled up
// with rows that belong to nobody. What changes from step to step (tokens, positions, slots, and the attention's plan)
// lies in one buffer of fixed size, which one copy brings to the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/kernels/cuda/paged_plan.h"
#include "core/memory/ledger.h"
#include "rollout/engine/cache/kv_cache.h"
#include "rollout/engine/graphs/graph_recorder.h"
#include "rollout/engine/scheduling/scheduler.h"

namespace quartet {

// Numbers of sequences for which to record, ascending: up to `most`, at most 512.
std::vector<int64_t> GraphBatchSizes(int64_t most);

struct DecodeGraphOptions {
  int64_t heads = 0;          // query heads
  int64_t max_model_len = 0;  // tokens of a sequence, at most
  int64_t max_num_seqs = 0;
};

// B rows, n of them sequences', V vocabulary. One thread.
class DecodeGraphs {
 public:
  // Logits, [B, V], of tokens that each follow what the cache has of their sequence, as GraphRecorder::Record wants it.
  // `attention` writes to the cache, and is to be told the layer.
  using Forward =
      std::function<at::Tensor(const at::Tensor& ids_B, const at::Tensor& positions_B, PagedAttention& attention)>;

  // Records. `cache`, of slots, outlives it; rows of nobody write to its last block, which must be no sequence's.
  // Throws OutOfMemoryError, and what LibTorch throws.
  DecodeGraphs(std::unique_ptr<GraphRecorder> recorder, const KvCache* cache, const DecodeGraphOptions& options,
               Forward forward, Ledger* ledger);

  // Whether chunks can be computed: each is its sequence's last token, a number of sequences is recorded that is large
  // enough, and it has room for the parts that long sequences' keys are cut into (ReservedDecodePlan).
  bool Fit(const std::vector<ScheduledChunk>& chunks) const;
  // The logits after each, [n, V], on the device, until the next call.
  at::Tensor Run(const std::vector<ScheduledChunk>& chunks);

  const std::vector<int64_t>& sizes() const { return sizes_; }
  // What it holds on the device beside the cache.
  int64_t bytes() const { return bytes_; }

 private:
  // Where things lie in the buffer, in words of 32 bits; first what takes two.
  struct Places {
    explicit Places(int64_t B, const DecodePlanSize& plan);
    int64_t ids, positions, slots;
    int64_t items, merges, tables, end;
  };

  std::unique_ptr<RecordedForward> RecordSize(int64_t B);
  void Write(const std::vector<ScheduledChunk>& chunks, int64_t B);
  DecodePlanSize PlanSize(int64_t B) const;

  const KvCache* const cache_;
  const DecodeGraphOptions options_;
  const int32_t spare_block_;
  const Forward forward_;
  const std::vector<int64_t> sizes_;
  at::Tensor host_words_, words_;  // int32, the buffer and what is copied to it
  int64_t bytes_ = 0;
  LedgerEntry pool_;
  const std::unique_ptr<GraphRecorder> recorder_;
  std::vector<std::unique_ptr<RecordedForward>> graphs_;  // of each size
};

}  // namespace quartet
