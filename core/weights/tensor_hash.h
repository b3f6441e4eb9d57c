// The hash that proves that a tensor arrived as it was sent (proto/weights.proto, docs/weight_sync.md). LibTorch-free.
#pragma once

#include <cstdint>

#include "core/safetensors/reader.h"

namespace quartet {

// Sum modulo 2^64 of Mix(position, bits) over `count` elements that start at `data`; the first of them is element
// `first_position` of its row-major tensor.
//
// Sums of disjoint parts of a tensor add up to the hash of the whole, in any order and under any sharding. `data` needs
// no alignment. Any Dtype of 1, 2, 4 or 8 bytes an element; the bits are hashed, so 0.0 and -0.0 differ.
uint64_t HashElements(const void* data, Dtype dtype, int64_t first_position, int64_t count);

}  // namespace quartet
