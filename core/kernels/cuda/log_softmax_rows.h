// Log-probabilities of chosen words from rows of logits, and back (core/kernels/cpu/log_softmax_rows.h), on a GPU.
// Without headers of LibTorch or CUDA.
//
// Pointers are of the present device's memory; logits are fp32, [rows, vocabulary], contiguous. A function starts its
// work on `stream` (a cudaStream_t); null, or what CUDA says is wrong.
#pragma once

#include <cstdint>

#include "core/kernels/cpu/log_softmax_rows.h"
#include "core/kernels/cuda/row_kernels.h"

namespace quartet {

// A target that is no word gives NaN.
const char* LaunchLogSoftmaxRows(const float* logits, const RowTargets& targets, float temperature, int64_t rows,
                                 int64_t vocabulary, float* log_probs, float* log_sums, const EntropyResult* entropy,
                                 void* stream);

const char* LaunchLogSoftmaxRowsGradient(const float* logits, const RowTargets& targets, float temperature,
                                         const float* log_sums, const float* gradients, const EntropyGradient* entropy,
                                         int64_t rows, int64_t vocabulary, RowElement element, void* logits_gradients,
                                         void* stream);

}  // namespace quartet
