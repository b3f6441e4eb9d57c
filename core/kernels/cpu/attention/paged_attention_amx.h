// Attention in bf16 by AMX's tiles (amx.h). LibTorch-free.
#pragma once

#include <cstdint>

#include "core/kernels/cpu/attention/paged_attention_kernel.h"

namespace quartet {

// Keys that are weighed at a time: those of positions from a multiple of it on.
inline constexpr int64_t kAmxKeysAtATime = 64;

// Rows of queries, [count, d] as they are in the model, and what has been made of the keys up to now.
struct AmxRows {
  int64_t count;
  const uint16_t* queries;
  const int64_t* visible;  // keys that each row sees; at least 1
  float* largest;          // [count], score / sqrt(d)
  float* weight_sum;       // [count, 16]: of every sixteenth key
  float* sums;             // [count, d]
};

// Whether attention in bf16 is made so in this process: where products are (CpuKernels), of heads of a multiple of 32
// dimensions.
bool HasAmxAttention(const PagedCacheLayout& layout);

// Goes on with keys [begin, end), as far as the rows see them. Both are multiples of kAmxKeysAtATime, or `end` is
// behind all keys. Weights are rounded to bf16 before values are multiplied by them. The bits of a row depend on no
// other. What `next` reads first, where it is not null, is asked for meanwhile. Thread safe.
void AmxAttend(const PagedCacheLayout& layout, const PagedAttentionTask<uint16_t>& task, const AmxRows& rows,
               int64_t begin, int64_t end, const PagedAttentionTask<uint16_t>* next);

}  // namespace quartet
