#include "core/hardware/device.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

int64_t Sum(const c10::CachingAllocator::StatArray& stats, int64_t c10::CachingAllocator::Stat::*which) {
  return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].*which;
}

}  // namespace

absl::Status EnterDevice(at::Device device) {
  if (!device.is_cuda()) return absl::OkStatus();
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {
    return absl::InvalidArgumentError(
        "device is \"cuda\"; this build has no CUDA: build with --config=cuda, or use \"cpu\"");
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (device.index() >= guard.deviceCount()) {
    return absl::FailedPreconditionError(absl::StrCat("device is \"cuda\"; the rank is number ", device.index(),
                                                      " on this host, which has ", guard.deviceCount(),
                                                      " CUDA devices, and each rank needs one"));
  }
  at::globalContext().lazyInitDevice(device.type());
  guard.setDevice(device);
  return absl::OkStatus();
}

DeviceMemory ReadDeviceMemory(at::Device device) {
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
  const c10::CachingDeviceAllocator::DeviceStats stats = allocator.getDeviceStats(device.index());
  const auto [free, total] = allocator.getMemoryInfo(device.index());
  const int64_t reserved = Sum(stats.reserved_bytes, &c10::CachingAllocator::Stat::current);
  return {.total = static_cast<int64_t>(total),
          .tensors = Sum(stats.allocated_bytes, &c10::CachingAllocator::Stat::current),
          .peak_tensors = Sum(stats.allocated_bytes, &c10::CachingAllocator::Stat::peak),
          .reserved = reserved,
          .peak_reserved = Sum(stats.reserved_bytes, &c10::CachingAllocator::Stat::peak),
          .others = static_cast<int64_t>(total - free) - reserved};
}

void ResetPeakTensors(at::Device device) { c10::getDeviceAllocator(device.type())->resetPeakStats(device.index()); }

void GiveBackDeviceMemory() {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return;
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(at::kCUDA);
  if (allocator->initialized()) allocator->emptyCache();
}

}  // namespace quartet
