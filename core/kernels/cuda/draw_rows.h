// Draws a token from each row of logits, on a GPU: the largest, or by the exponential race over all of the vocabulary
// (rollout/engine/sampling/sampler.h, of whose draws these are the same; what else that file knows is for the CPU).
// Without headers of LibTorch or CUDA.
#pragma once

#include <cstdint>

namespace quartet {

struct RowToDraw {
  uint64_t noise_key;
  int32_t row;                 // of the logits
  float temperature;           // of what is drawn from; 0: the lowest id among equal largest logits
  float log_prob_temperature;  // of log_prob
  int32_t padding = 0;
};

struct DrawnRow {
  int32_t id;
  float log_prob;          // of `id`, under softmax(logits / log_prob_temperature)
  float sampled_log_prob;  // under softmax(logits / temperature); 0 without temperature
  float largest;           // logit; NaN where one is. Where it is not finite, nothing else holds
};

// Bytes of memory, aligned to 8, that LaunchDrawRows works in.
int64_t DrawRowsScratch(int64_t vocab_size, int64_t count);

// logits [*, vocab_size], fp32; `rows` and `drawn` [count]; all of the present device's memory. On `stream` (a
// cudaStream_t). Null, or what CUDA says is wrong.
const char* LaunchDrawRows(const float* logits, int64_t vocab_size, const RowToDraw* rows, int64_t count, void* scratch,
                           DrawnRow* drawn, void* stream);

}  // namespace quartet
