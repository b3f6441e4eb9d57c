#include "core/zero/accounted_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <utility>

namespace quartet {
namespace {

struct Block {
  c10::DataPtr memory;
  LedgerEntry entry;
};

c10::DataPtr Allocate(Ledger* ledger, MemoryCategory category, int64_t bytes, at::Device device) {
  auto block = std::make_unique<Block>();
  block->memory = c10::GetAllocator(device.type())->allocate(bytes);
  block->entry = LedgerEntry(ledger, category, bytes);
  void* data = block->memory.get();
  device = block->memory.device();
  return c10::DataPtr(
      data, block.release(), [](void* context) { delete static_cast<Block*>(context); }, device);
}

}  // namespace

at::Tensor AccountedEmpty(Ledger* ledger, MemoryCategory category, int64_t numel, at::ScalarType dtype,
                          at::Device device) {
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  c10::DataPtr data = Allocate(ledger, category, bytes, device);
  const at::TensorOptions options = at::TensorOptions(dtype).device(data.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), /*allocator=*/nullptr,
                       /*resizable=*/false);
  return at::empty({0}, options).set_(std::move(storage), 0, {numel}, {1});
}

at::Tensor AccountedZeros(Ledger* ledger, MemoryCategory category, int64_t numel, at::ScalarType dtype,
                          at::Device device) {
  at::Tensor tensor = AccountedEmpty(ledger, category, numel, dtype, device);
  tensor.zero_();
  return tensor;
}

void FreeStorage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(size_t{0});
}

void RefillStorage(Ledger* ledger, MemoryCategory category, const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const int64_t bytes = tensor.numel() * static_cast<int64_t>(tensor.element_size());
  storage->set_data_ptr_noswap(Allocate(ledger, category, bytes, storage->device()));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

}  // namespace quartet
