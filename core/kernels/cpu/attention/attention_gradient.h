// Gradients of causal attention among the tokens of a tree of sequences, on the CPU. LibTorch-free; fp32 inside.
//
// d head dimension, G query heads that read one key/value head. Elements are float, or uint16_t with the bits of bf16.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels/cpu/attention/sequence_rows.h"

namespace quartet {

// One key/value head of all rows.
template <typename Element>
struct AttentionGradientHead {
  // Of row r and head g of the group: queries + r * query_stride + g * d; likewise the gradients.
  const Element* queries = nullptr;
  const Element* output_gradients = nullptr;
  Element* query_gradients = nullptr;
  int64_t query_stride = 0;
  // Of row r: keys + r * key_stride.
  const Element* keys = nullptr;
  const Element* values = nullptr;
  Element* key_gradients = nullptr;
  Element* value_gradients = nullptr;
  int64_t key_stride = 0;
  // Of row r and head g, at [r * number_stride + g]: the logarithm of the sum of e^(q k^T / sqrt(d)), and the dot
  // product of the output and its gradient.
  const float* log_sums = nullptr;
  const float* deltas = nullptr;
  int64_t number_stride = 0;
  int64_t group = 1;
  int64_t head_dim = 64;
};

// Which gradients are computed together. A row of `own` sees the rows of `own` up to itself, and all that its sequence
// shares.
struct AttentionGradientTask {
  RowRange own;
  // Of the queries of `own`: what they see besides. Nothing where their gradients are not wanted.
  bool of_queries = true;
  std::vector<RowRange> before;
  // Rows of `own` whose keys' and values' gradients are wanted.
  RowRange keys;
  // Rows of other sequences that see the first `seen` rows of `own`.
  struct Later {
    RowRange rows;
    int64_t seen = 0;
  };
  std::vector<Later> after;
};

// The tasks that give all gradients of `rows`, each once. The same whatever the number of threads.
std::vector<AttentionGradientTask> AttentionGradientTasks(const SequenceRows& rows);

// Floats that AttendGradient works in, for a task of at most so many own rows.
int64_t AttentionGradientScratch(int64_t own_rows, int64_t group, int64_t head_dim);

// Writes the task's gradients. The same bits each time. Thread safe for disjoint gradients and scratch.
template <typename Element>
void AttendGradient(const AttentionGradientHead<Element>& head, const AttentionGradientTask& task, float* scratch);

// deltas[r]: the dot product of row r, [d], of outputs and their gradients, rows being `stride` apart.
template <typename Element>
void AttentionDeltas(const Element* outputs, const Element* output_gradients, int64_t stride, int64_t rows, int64_t d,
                     float* deltas);

}  // namespace quartet
