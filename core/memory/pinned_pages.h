// Page-locked memory from the system, in builds that have CUDA.
#pragma once

#include <cstddef>

namespace quartet {

// Whole pages, with the present device's driver; null where there are none, and in builds without CUDA.
void* TakePinnedPages(size_t bytes);
void GivePinnedPages(void* memory, size_t bytes);

}  // namespace quartet
