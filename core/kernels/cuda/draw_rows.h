// Draws a token from each row of logits, on a GPU, as rollout/engine/sampling/sampler.h says: edits, temperature,
// top_k, min_p, top_p, then the largest or an exponential race. The same draws but where a mass is within 1e-7 of
// top_p. Penalties and alternatives, which that file knows too, are for the CPU. Without headers of LibTorch or CUDA.
#pragma once

#include <cstdint>

namespace quartet {

struct RowToDraw {
  uint64_t noise_key;
  int32_t row;                 // of the logits
  float temperature;           // of what is drawn from; 0: the lowest id among equal largest logits
  float log_prob_temperature;  // of log_prob
  int32_t top_k = 0;           // 0: off
  float top_p = 1;
  float min_p = 0;
  // Of the edits of all rows those of this one.
  int32_t edits_begin = 0;
  int32_t edits_end = 0;
  int32_t padding = 0;
};

// Is added to a logit before the temperature, and not told of; -infinity: the token cannot be drawn.
struct LogitEdit {
  int32_t id;
  float bias;
};
// Each token is compared with each edit of its row.
inline constexpr int64_t kMostEditsOfRow = 16;

struct DrawnRow {
  int32_t id;
  float log_prob;          // of `id`, under softmax(logits / log_prob_temperature)
  float sampled_log_prob;  // under what was drawn from; 0 without temperature
  float largest;           // logit; NaN where one is. Where it is not finite, nothing else holds
  float largest_edited;    // likewise
};

// Bytes of memory, aligned to 8, that LaunchDrawRows works in.
int64_t DrawRowsScratch(int64_t vocab_size, int64_t count);

// logits [*, vocab_size], fp32; `rows` and `drawn` [count]; all of the present device's memory. `cuts`: whether any row
// has top_k or top_p. On `stream` (a cudaStream_t). Null, or what CUDA says is wrong.
const char* LaunchDrawRows(const float* logits, int64_t vocab_size, const RowToDraw* rows, const LogitEdit* edits,
                           int64_t count, bool cuts, void* scratch, DrawnRow* drawn, void* stream);

}  // namespace quartet
