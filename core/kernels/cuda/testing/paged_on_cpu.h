// The items of core/kernels/cuda/paged_items.h on one thread of the CPU: for tests of what a GPU's threads do together.
// Where this is linked CudaPagedAttention takes tensors of the host's memory. LibTorch-free.
#pragma once

#include "core/kernels/cuda/paged_items.h"

namespace quartet {

// Computes what `args` describes, whose pointers are of the host's memory.
void ComputePagedItems(const PagedKernelArgs& args);

}  // namespace quartet
