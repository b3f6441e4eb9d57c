// How a forward's attention is cut into the items of core/kernels/cuda/paged_items.h. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels/cpu/attention/paged_attention_kernel.h"
#include "core/kernels/cuda/paged_items.h"

namespace quartet {

// Enough work for the multiprocessors of the largest GPUs, twice over.
inline constexpr int64_t kWantedItems = 264;

struct PagedPlan {
  std::vector<AttentionItem> items;  // narrow ones first
  int32_t num_narrow = 0;
  int32_t narrow_rows = 0;  // the most that one of them has
  std::vector<AttentionMerge> merges;
  int32_t parts = 0;
  std::vector<int32_t> tables;
};

// Whether items can compute heads of this size, `group` of which share a key/value head.
bool TilesFit(int64_t head_dim, int64_t group);

// The chunks' tokens lie end to end. Where there are fewer items than `wanted` (of all key/value heads together), keys
// of narrow ones are cut into parts.
PagedPlan PlanPagedAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads,
                             int64_t kv_heads, int64_t wanted);

// The numbers of what a plan has.
struct DecodePlanSize {
  int64_t items = 0;
  int64_t merges = 0;
  int64_t parts = 0;
  int64_t tables = 0;  // elements
};

// At most, of `chunks` chunks of one token, where no sequence is longer than `longest`.
DecodePlanSize LargestDecodePlan(int64_t block_size, int64_t chunks, int64_t kv_heads, int64_t longest, int64_t wanted);

// Adds narrow items and merges of no tokens, which compute nothing, to a plan without wide ones, up to these numbers.
void FillUp(const DecodePlanSize& size, PagedPlan* plan);

// Computes what `args` describes, whose pointers are of the host's memory. Tests alone have it
// (testing/paged_on_cpu.h).
inline void (*compute_items_of_host)(const PagedKernelArgs& args) = nullptr;

}  // namespace quartet
