// Tensors whose bytes stand in a ledger for as long as their storage has memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/zero/ledger.h"

namespace quartet {

// Flat, not initialised. `ledger` must outlive the storage.
at::Tensor AccountedEmpty(Ledger* ledger, MemoryCategory category, int64_t numel, at::ScalarType dtype,
                          at::Device device);
at::Tensor AccountedZeros(Ledger* ledger, MemoryCategory category, int64_t numel, at::ScalarType dtype,
                          at::Device device);

// Gives back the memory under `tensor` and all its views, which then must not be read until Refill.
void FreeStorage(const at::Tensor& tensor);

// Gives a tensor of `AccountedEmpty`, freed by FreeStorage, new memory (not initialised); its views are valid again.
void RefillStorage(Ledger* ledger, MemoryCategory category, const at::Tensor& tensor);

}  // namespace quartet
