// Log-probabilities of chosen words from rows of logits, and back, on the CPU. LibTorch-free; a row's bits do not
// depend on the rows around it. Thread safe for disjoint results.
//
// Logits are fp32, [rows, vocabulary], contiguous.
#pragma once

#include <cstdint>

namespace quartet {

// The words that are chosen from each row: of row r ids[i] for i in [Begin(r), Begin(r + 1)). What is given or found of
// them is numbered as `ids` is.
struct RowTargets {
  const int64_t* ids = nullptr;
  const int64_t* starts = nullptr;  // null: one of each row
  int64_t first = 0;                // row 0's number among those that `starts` counts

  RowTargets From(int64_t row) const { return {ids, starts, first + row}; }
  int64_t Begin(int64_t row) const { return starts == nullptr ? first + row : starts[first + row]; }
};

// Entropies [rows] in nats, of softmax(logits / temperature), and log_sums [rows]: the logarithm of the sum of
// e^(logits / temperature).
struct EntropyResult {
  float temperature = 1;
  float* entropies = nullptr;
  float* log_sums = nullptr;
};

// log_probs: log_softmax(logits / temperature) of each target; log_sums [rows] as above, at that temperature.
// `entropy`: where not null, taken as well, which at the same temperature costs no further pass.
void LogSoftmaxRows(const float* logits, const RowTargets& targets, float temperature, int64_t rows, int64_t vocabulary,
                    float* log_probs, float* log_sums, const EntropyResult* entropy);

// What EntropyResult has been filled with, and the gradients [rows] of the entropies.
struct EntropyGradient {
  float temperature = 1;
  const float* entropies = nullptr;
  const float* log_sums = nullptr;
  const float* gradients = nullptr;
};

// The logits' gradients from those of the log-probabilities, `gradients`, and, where not null, of entropies, as
// Element: float, or uint16_t for the bits of bf16. May be written over the logits where they are of the same type.
template <typename Element>
void LogSoftmaxRowsGradient(const float* logits, const RowTargets& targets, float temperature, const float* log_sums,
                            const float* gradients, const EntropyGradient* entropy, int64_t rows, int64_t vocabulary,
                            Element* logits_gradients);

}  // namespace quartet
