// Gradients of causal attention within one sequence, on the CPU. LibTorch-free; fp32 inside.
//
// d head dimension, G query heads that read one key/value head, N tokens. Elements are float, or uint16_t with the bits
// of bf16.
#pragma once

#include <cstdint>

namespace quartet {

// One sequence, one key/value head. Token t sees tokens [0, t].
template <typename Element>
struct AttentionGradientTask {
  // Row of token t and head g of the group: start + t * query_stride + g * d.
  const Element* queries = nullptr;
  const Element* outputs = nullptr;  // softmax(q k^T / sqrt(d)) v
  const Element* output_gradients = nullptr;
  Element* query_gradients = nullptr;
  int64_t query_stride = 0;
  // Row of token t: start + t * key_stride.
  const Element* keys = nullptr;
  const Element* values = nullptr;
  Element* key_gradients = nullptr;
  Element* value_gradients = nullptr;
  int64_t key_stride = 0;
  // Of token t and head g, at [t * log_sum_stride + g]: the logarithm of the sum of e^(q k^T / sqrt(d)).
  const float* log_sums = nullptr;
  int64_t log_sum_stride = 0;
  int64_t tokens = 0;
  int64_t group = 1;
  int64_t head_dim = 64;
};

// Floats that AttendGradient works in.
int64_t AttentionGradientScratch(int64_t tokens, int64_t group, int64_t head_dim);

// Writes the three gradients. The same bits each time. Thread safe for disjoint gradients and scratch.
template <typename Element>
void AttendGradient(const AttentionGradientTask<Element>& task, float* scratch);

}  // namespace quartet
