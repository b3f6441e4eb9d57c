#include "core/memory/pinned_memory.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "core/memory/pinned_blocks.h"
#include "core/memory/pinned_pages.h"

namespace quartet {
namespace {

PinnedBlocks& Pinned() {
  static auto* blocks = new PinnedBlocks({.take = TakePinnedPages, .give = GivePinnedPages});  // as tensors, to the end
  return *blocks;
}

struct PinnedBlock {
  void* memory;
  c10::Device device;
};

// A deleter: it must not throw.
void FreePinned(void* context) {
  const std::unique_ptr<PinnedBlock> block(static_cast<PinnedBlock*>(context));
  PinnedBlocks::Wait wait = [] {};
  try {
    const auto done = std::make_shared<c10::Event>(block->device.type());
    done->record(c10::impl::VirtualGuardImpl(block->device.type()).getStream(block->device));
    wait = [done] { done->synchronize(); };
  } catch (const std::exception&) {
    // The device has failed, or the process ends: nothing will read the memory any more.
  }
  Pinned().Free(block->memory, std::move(wait));
}

}  // namespace

c10::DataPtr PinnedMemory::allocate(size_t bytes) {
  if (bytes == 0) return c10::DataPtr(nullptr, c10::DeviceType::CPU);
  void* memory = Pinned().Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return c10::DataPtr(memory, new PinnedBlock{memory, device_}, &FreePinned, c10::DeviceType::CPU);
}

void PinnedMemory::copy_data(void* to, const void* from, std::size_t count) const { std::memcpy(to, from, count); }

void PinnedMemory::GiveBackFreed() { Pinned().GiveBack(); }

}  // namespace quartet
