// Sums over the tokens of each sequence. `lengths` are the tokens of each sequence, in order; they add up to A.
// Differentiable in the values. The order of additions is the same each time, also on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace quartet {

// [S]: a sum a sequence. `values_A` itself, which is empty, where there is no sequence.
at::Tensor SequenceSums(const at::Tensor& values_A, const std::vector<int64_t>& lengths);

// [A]: each token has the sum of its sequence.
at::Tensor SequenceSumOfTokens(const at::Tensor& values_A, const std::vector<int64_t>& lengths);

}  // namespace quartet
