// Hashes of tensors (core/weights/tensor_hash.h) in a GPU's memory. Without headers of LibTorch or CUDA.
#pragma once

#include <cstdint>

namespace quartet {

// Adds the hash of `count` elements of `element_bytes` (1, 2, 4 or 8) to `sum`, modulo 2^64; the first of them is
// element `first_position` of its tensor. Pointers are of the present device's memory, `data` aligned as its elements
// are. Starts on `stream` (a cudaStream_t); null, or what CUDA says is wrong.
const char* LaunchHashElements(const void* data, int element_bytes, int64_t first_position, int64_t count,
                               uint64_t* sum, void* stream);

}  // namespace quartet
