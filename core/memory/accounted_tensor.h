// Tensors whose bytes stand in a ledger for as long as their storage has memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/memory/ledger.h"

namespace quartet {

// While it lives, whatever memory LibTorch takes on this thread for tensors on the CPU or the meta device (which takes
// none, but counts the same) stands in `ledger` until it is freed: by whichever thread, with or without the scope, even
// after the ledger. An allocation beyond the budget throws MemoryBudgetError out of the operator that wanted it, one
// that the system refuses OutOfMemoryError. Scopes nest, the innermost counts; a backward pass belongs to the scope of
// the thread that calls it. Not seen: storages on the meta device that an operator resizes in place (LibTorch only
// changes their size), memory of CUDA devices, and what libraries take beside LibTorch's allocator.
//
// `ledger` must outlive the scope. Outside of all scopes nothing is counted.
//
// Large blocks of host memory come from the process's BlockCache, within scopes and outside of them: what that keeps of
// freed blocks while a call runs (ReuseScope) belongs to no category.
class [[nodiscard]] MemoryScope {
 public:
  MemoryScope(Ledger* ledger, MemoryCategory category, MemoryTier tier = MemoryTier::kDevice);
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  ~MemoryScope();

 private:
  friend class AccountingAllocator;
  Ledger* const ledger_;
  const MemoryCategory category_;
  const MemoryTier tier_;
  const MemoryScope* const outer_;
};

// Flat, not initialised. Throws as MemoryScope says, also for CUDA devices; for these the host tier is pinned memory of
// the host (core/memory/pinned_memory.h).
at::Tensor AccountedEmpty(Ledger* ledger, MemoryCategory category, int64_t numel, at::ScalarType dtype,
                          at::Device device, MemoryTier tier = MemoryTier::kDevice);
at::Tensor AccountedZeros(Ledger* ledger, MemoryCategory category, int64_t numel, at::ScalarType dtype,
                          at::Device device, MemoryTier tier = MemoryTier::kDevice);

// Gives what is kept of freed blocks back to the operating system, also while a call runs, and what LibTorch keeps of
// CUDA devices' memory to these. Thread safe.
void GiveBackFreedBlocks();

// `values` where the CPU can read them, once all that they are computed from is done: themselves where they are on the
// CPU, else a copy, accounted to `category` in the host's tier.
at::Tensor HostCopyOf(Ledger* ledger, MemoryCategory category, const at::Tensor& values);

// Gives back the memory under `tensor` and all its views, which then must not be read until Refill.
void FreeStorage(const at::Tensor& tensor);

// Gives a flat tensor, freed by FreeStorage, new memory (not initialised); its views are valid again.
void RefillStorage(Ledger* ledger, MemoryCategory category, const at::Tensor& tensor,
                   MemoryTier tier = MemoryTier::kDevice);

}  // namespace quartet
