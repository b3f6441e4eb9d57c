// core/kernels/cuda/paged_kernel.h on LibTorch's present stream, in builds that have it.
#pragma once

#include <c10/core/Device.h>

#include "core/kernels/cuda/paged_tiles.h"

namespace quartet {

// Null, or what is wrong.
const char* RunPagedKernel(const PagedKernelArgs& args, at::Device device);

}  // namespace quartet
