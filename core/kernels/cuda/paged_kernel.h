// The items of core/kernels/cuda/paged_items.h on a GPU. Without headers of LibTorch or CUDA.
#pragma once

#include "core/kernels/cuda/paged_items.h"

namespace quartet {

// Starts what `args` describes, whose pointers are of the present device's memory, on `stream` (a cudaStream_t). Null,
// or what CUDA says is wrong.
const char* LaunchPagedKernel(const PagedKernelArgs& args, void* stream);

// Keys and values that go into a layer's slots: of the first `tokens`, rows of `row` elements, a multiple of 8.
struct NewKeys {
  const int64_t* slots;
  const uint16_t *keys, *values;  // tokens so many elements apart, multiples of 8:
  int64_t keys_stride, values_stride;
  uint16_t *key_slots, *value_slots;  // [slots, row]
  int64_t tokens, row;
};
// As LaunchPagedKernel.
const char* LaunchStoreInSlots(const NewKeys& stored, void* stream);

}  // namespace quartet
