#include "core/memory/accounted_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/hardware/device.h"
#include "core/hardware/meta_device.h"
#include "core/memory/block_cache.h"
#include "core/memory/pinned_memory.h"

namespace quartet {
namespace {

thread_local const MemoryScope* innermost = nullptr;

// `bytes` of `memory`, once they stand in `entry`.
c10::DataPtr Allocate(c10::Allocator* memory, size_t bytes, Ledger* ledger, MemoryCategory category, MemoryTier tier,
                      LedgerEntry* entry) {
  *entry = LedgerEntry(ledger, category, static_cast<int64_t>(bytes), tier);
  try {
    return memory->allocate(bytes);
  } catch (const std::exception&) {
    entry->Reset();
    throw OutOfMemoryError(ledger->ExplainFailure(category, static_cast<int64_t>(bytes), tier));
  }
}

// Memory that keeps its entry in the context of its pointer.
c10::DataPtr WithContext(c10::DataPtr memory, LedgerEntry entry) {
  struct Block {
    LedgerEntry entry;
    c10::DataPtr memory;  // freed before the entry
  };
  auto block = std::make_unique<Block>(std::move(entry), std::move(memory));
  void* data = block->memory.get();
  const c10::Device device = block->memory.device();
  return c10::DataPtr(
      data, block.release(), [](void* context) { delete static_cast<Block*>(context); }, device);
}

// The entries of memory by its address. Thread safe.
class EntryTable {
 public:
  void Put(void* data, LedgerEntry entry) {
    Shard& shard = ShardOf(data);
    const std::lock_guard lock(shard.mutex);
    shard.entries.insert_or_assign(data, std::move(entry));
  }

  // Nothing where there is none.
  void Drop(void* data) {
    Shard& shard = ShardOf(data);
    const std::lock_guard lock(shard.mutex);
    shard.entries.erase(data);
  }

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
    std::unordered_map<void*, LedgerEntry> entries;
  };
  Shard& ShardOf(void* data) { return shards_[(reinterpret_cast<uintptr_t>(data) >> 6) % shards_.size()]; }

  std::array<Shard, 61> shards_;
};

}  // namespace

// Stands before LibTorch's allocator of a device and adds what is asked for within a scope to the scope's ledger.
class AccountingAllocator : public c10::Allocator {
 public:
  // `memory` must live as long as tensors may.
  explicit AccountingAllocator(c10::Allocator* memory) : memory_(memory) {}

  c10::DataPtr allocate(size_t bytes) final {
    const MemoryScope* scope = innermost;
    if (scope == nullptr || bytes == 0) return memory_->allocate(bytes);
    LedgerEntry entry;
    c10::DataPtr memory = Allocate(memory_, bytes, scope->ledger_, scope->category_, scope->tier_, &entry);
    return Attach(std::move(memory), std::move(entry));
  }

  void copy_data(void* to, const void* from, std::size_t count) const final { memory_->copy_data(to, from, count); }

 protected:
  virtual c10::DataPtr Attach(c10::DataPtr memory, LedgerEntry entry) = 0;

  c10::Allocator* const memory_;
};

namespace {

// LibTorch's own for small blocks, the process's BlockCache for large ones.
class HostMemory final : public c10::Allocator {
 public:
  HostMemory() : small_(c10::GetAllocator(c10::DeviceType::CPU)) {}

  static HostMemory& Instance() {
    static auto* memory = new HostMemory;  // tensors may be freed while the process ends
    return *memory;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < BlockCache::kSmallestBlock) return small_->allocate(bytes);
    void* data = HostBlocks().Allocate(bytes);
    if (data == nullptr) return small_->allocate(bytes);  // throws what LibTorch would
    return c10::DataPtr(data, data, &Free, c10::DeviceType::CPU);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t count) const override { small_->copy_data(to, from, count); }

 private:
  static void Free(void* data) {
    if (!HostBlocks().Free(data)) Instance().small_->raw_deallocate(data);
  }

  c10::Allocator* const small_;
};

// oneDNN takes and gives back bare pointers (raw_allocate, raw_deallocate): the context must be the memory itself, and
// one function must free memory of scopes and other memory alike. So the entries are kept beside the memory.
class CpuAllocator final : public AccountingAllocator {
 public:
  CpuAllocator() : AccountingAllocator(&HostMemory::Instance()) {}

  c10::DeleterFnPtr raw_deleter() const override { return &Free; }

  static CpuAllocator& Instance() {
    static auto* allocator = new CpuAllocator;  // tensors may be freed while the process ends
    return *allocator;
  }

 protected:
  c10::DataPtr Attach(c10::DataPtr memory, LedgerEntry entry) override {
    entries_.Put(memory.get(), std::move(entry));
    const c10::Device device = memory.device();
    void* data = memory.release_context();
    return c10::DataPtr(data, data, &Free, device);
  }

 private:
  static void Free(void* data) {
    CpuAllocator& self = Instance();
    self.entries_.Drop(data);  // first: once it is free, another thread may get the same address
    self.memory_->raw_deallocate(data);
  }

  EntryTable entries_;
};

// Memory of no bytes has no address.
class MetaAllocator final : public AccountingAllocator {
 public:
  MetaAllocator() : AccountingAllocator(c10::GetAllocator(c10::DeviceType::Meta)) {}

 protected:
  c10::DataPtr Attach(c10::DataPtr memory, LedgerEntry entry) override {
    return WithContext(std::move(memory), std::move(entry));
  }
};

// LibTorch's own allocators are registered when its libraries are loaded, before this; nobody allocates meanwhile.
bool InstallAllocators() {
  constexpr uint8_t kPriority = 1;  // LibTorch's have 0
  c10::SetAllocator(c10::DeviceType::CPU, &CpuAllocator::Instance(), kPriority);
  c10::SetAllocator(c10::DeviceType::Meta, new MetaAllocator, kPriority);
  return true;
}
[[maybe_unused]] const bool installed = InstallAllocators();

c10::DataPtr AllocateOn(at::Device device, int64_t bytes, Ledger* ledger, MemoryCategory category, MemoryTier tier) {
  c10::Allocator* allocator = c10::GetAllocator(device.type());
  if (device.is_cuda()) {
    const c10::DeviceGuard guard(device);
    // Pinned, so that copies reach the device at full speed and beside its computation.
    PinnedMemory pinned(device);
    if (tier == MemoryTier::kHost) allocator = &pinned;
    LedgerEntry entry;
    c10::DataPtr memory = Allocate(allocator, bytes, ledger, category, tier, &entry);
    return WithContext(std::move(memory), std::move(entry));
  }
  const MemoryScope scope(ledger, category, tier);
  return allocator->allocate(bytes);
}

}  // namespace

MemoryScope::MemoryScope(Ledger* ledger, MemoryCategory category, MemoryTier tier)
    : ledger_(ledger), category_(category), tier_(tier), outer_(innermost) {
  innermost = this;
}

MemoryScope::~MemoryScope() { innermost = outer_; }

at::Tensor AccountedEmpty(Ledger* ledger, MemoryCategory category, int64_t numel, at::ScalarType dtype,
                          at::Device device, MemoryTier tier) {
  if (!device.is_cuda()) {
    const MemoryScope scope(ledger, category, tier);
    return at::empty({numel}, at::TensorOptions(dtype).device(device));
  }
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  c10::DataPtr data = AllocateOn(device, bytes, ledger, category, tier);
  const at::TensorOptions options = at::TensorOptions(dtype).device(data.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), /*allocator=*/nullptr,
                       /*resizable=*/false);
  return at::empty({0}, options).set_(std::move(storage), 0, {numel}, {1});
}

at::Tensor AccountedZeros(Ledger* ledger, MemoryCategory category, int64_t numel, at::ScalarType dtype,
                          at::Device device, MemoryTier tier) {
  at::Tensor tensor = AccountedEmpty(ledger, category, numel, dtype, device, tier);
  tensor.zero_();
  return tensor;
}

at::Tensor HostCopyOf(Ledger* ledger, MemoryCategory category, const at::Tensor& values) {
  if (ComputeDevice(values) == at::kCPU) return values;
  const at::Tensor copy =
      AccountedEmpty(ledger, category, values.numel(), values.scalar_type(), values.device(), MemoryTier::kHost)
          .view(values.sizes());
  copy.copy_(values);
  return copy;
}

void GiveBackFreedBlocks() {
  HostBlocks().GiveBack();
  PinnedMemory::GiveBackFreed();
  GiveBackDeviceMemory();
}

void FreeStorage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(size_t{0});
}

void RefillStorage(Ledger* ledger, MemoryCategory category, const at::Tensor& tensor, MemoryTier tier) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const int64_t bytes = tensor.numel() * static_cast<int64_t>(tensor.element_size());
  storage->set_data_ptr_noswap(AllocateOn(storage->device(), bytes, ledger, category, tier));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

}  // namespace quartet
