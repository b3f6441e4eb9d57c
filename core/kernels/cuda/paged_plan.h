// How a forward's attention is cut into the items of core/kernels/cuda/paged_items.h. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels/cpu/attention/paged_attention_kernel.h"
#include "core/kernels/cuda/paged_items.h"

namespace quartet {

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

// How many parts the `keys` keys of an item of one token, as of a sequence that decodes, are cut into. It follows from
// them alone: what is computed beside it changes no bit of its attention, and one long sequence among short ones keeps
// none of them waiting.
int64_t PartsOf(int64_t keys);

// The chunks' tokens lie end to end.
PagedPlan PlanPagedAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads,
                             int64_t kv_heads);

// The numbers of what a plan has.
struct DecodePlanSize {
  int64_t items = 0;
  int64_t merges = 0;
  int64_t parts = 0;
  int64_t tables = 0;  // elements
};

// The room that a recorded forward keeps for `chunks` chunks of one token, where no sequence is longer than `longest`.
// A plan of more items finds none: so much attention should take longer than launching kernels one by one adds, and
// room for it would start blocks that compute nothing in every other step.
DecodePlanSize ReservedDecodePlan(int64_t block_size, int64_t chunks, int64_t kv_heads, int64_t longest);

// Adds narrow items and merges of no tokens, which compute nothing, to a plan without wide ones, up to these numbers.
void FillUp(const DecodePlanSize& size, PagedPlan* plan);

// Computes what `args` describes, whose pointers are of the host's memory. Tests alone have it
// (testing/paged_on_cpu.h).
inline void (*compute_items_of_host)(const PagedKernelArgs& args) = nullptr;

}  // namespace quartet
