// What a decoder computes row by row between its matrix products, on the CPU: forward and backward. LibTorch-free; fp32
// inside.
//
// Elements are float, or uint16_t with the bits of bf16. A row's bits do not depend on the rows around it. All
// functions are thread safe for disjoint results.
#pragma once

#include <cstdint>

namespace quartet {

// Root mean square norm (Zhang, Sennrich, 2019) of rows [rows, size], rounded as transformers' Llama does: out = weight
// * Element(x / rms), rms = sqrt(mean(x^2) + eps). Where not null, inverse_rms [rows] becomes 1 / rms.
template <typename Element>
void RmsNormRows(const Element* x, const Element* weight, double eps, int64_t rows, int64_t size, Element* out,
                 float* inverse_rms);

// From the gradient of `out` that of x, and of the weight the sum over the rows, which is written to weight_gradient
// [size] where that is not null.
template <typename Element>
void RmsNormRowsGradient(const Element* x, const Element* weight, const float* inverse_rms, const Element* out_gradient,
                         int64_t rows, int64_t size, Element* x_gradient, float* weight_gradient);

// Rotary embedding of tokens [tokens, heads, d]: turns pairs (i, i + d / 2) of each head by the angles whose cosines
// and sines are [tokens, d / 2], rows `table_stride` apart. With `back` by their negatives, which is the gradient.
template <typename Element>
void RotateRows(const Element* x, const float* cosines, const float* sines, int64_t table_stride, bool back,
                int64_t tokens, int64_t heads, int64_t d, Element* out);

// out = Element(gate / (1 + e^-gate)) * up, element by element.
template <typename Element>
void SwiGluRow(const Element* gate, const Element* up, int64_t count, Element* out);
template <typename Element>
void SwiGluRowGradient(const Element* gate, const Element* up, const Element* out_gradient, int64_t count,
                       Element* gate_gradient, Element* up_gradient);

}  // namespace quartet
