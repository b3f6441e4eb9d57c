// What of a GPU no tensor accounts for.
#pragma once

#include <cstdint>

namespace quartet {

// A process's CUDA context with the kernels in use: what a rank takes of an H200 beside what LibTorch's allocator has
// reserved, CUDA 13.0: 683 (a scorer) to 816 MiB (a trainer) in two runs of 1.24 B parameters.
inline constexpr int64_t kCudaContextBytes = int64_t{816} << 20;

// NCCL's buffers for a group of two ranks, and of more: 4 A100 with NVLink (NVIDIA/nccl#964).
inline constexpr int64_t kNcclBytesOfTwo = int64_t{544} << 20;
inline constexpr int64_t kNcclBytesOfMore = int64_t{688} << 20;

}  // namespace quartet
