// The items of core/kernels/cuda/paged_tiles.h on a GPU. Without headers of LibTorch or CUDA.
#pragma once

#include "core/kernels/cuda/paged_tiles.h"

namespace quartet {

// Starts what `args` describes, whose pointers are of the present device's memory, on `stream` (a cudaStream_t). Null,
// or what CUDA says is wrong.
const char* LaunchPagedKernel(const PagedKernelArgs& args, void* stream);

}  // namespace quartet
