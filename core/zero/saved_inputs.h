// The inputs of blocks, kept from a forward pass for its backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/memory/host_copy.h"
#include "core/memory/ledger.h"

namespace quartet {

// Without offload it holds what it is given. With offload (Megatron: CPU activation offloading; DeepSpeed:
// cpu_checkpointing) inputs leave for host memory while the next block computes, and come back one block ahead of the
// backward pass: the device holds two of them at most.
class SavedInputs {
 public:
  SavedInputs(Ledger* ledger, at::Device device, bool offload, int blocks);
  SavedInputs(const SavedInputs&) = delete;
  SavedInputs& operator=(const SavedInputs&) = delete;
  ~SavedInputs();
  // For the blocks in order.
  void Save(int block, const at::Tensor& input_TD);
  // For the blocks in reverse order, each once.
  at::Tensor Take(int block);

 private:
  struct Entry {
    at::Tensor device, host;
    HostCopy copy;
    LedgerEntry unseen;  // bytes of `device` on CUDA as it was given, which a MemoryScope does not see
  };
  void BringBack(int block);

  Ledger* const ledger_;
  const at::Device device_;
  const bool offload_;
  std::vector<Entry> entries_;
  HostCopyStream out_, in_;
};

}  // namespace quartet
