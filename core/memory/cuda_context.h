// What of a GPU no tensor accounts for.
#pragma once

#include <cstdint>

namespace quartet {

// A process's CUDA context with the kernels in use: what a rank takes of an H200 beside what LibTorch's allocator has
// reserved, CUDA 13.0: 683 (a scorer) to 816 MiB (a trainer) in two runs of 1.24 B parameters.
inline constexpr int64_t kCudaContextBytes = int64_t{816} << 20;

}  // namespace quartet
