// Page-locked host memory as LibTorch's tensors take it.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace quartet {

// For copies to and from `device`, a CUDA device: blocks of the process's PinnedBlocks. Whoever lets go of memory has
// ordered all copies that read or write it before the device's present stream (HostCopy::Order): from there it is
// waited for before anyone else gets it.
class PinnedMemory final : public c10::Allocator {
 public:
  explicit PinnedMemory(c10::Device device) : device_(device) {}
  // Throws std::bad_alloc.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, std::size_t count) const override;

  static void GiveBackFreed();

 private:
  const c10::Device device_;
};

}  // namespace quartet
