#include "core/weights/device_hashes.h"

#include <ATen/ops/zeros.h>

#include "core/kernels/cuda/hash_elements.h"
#include "core/kernels/cuda/present_stream.h"

namespace quartet {

DeviceHashes::DeviceHashes(int tensors, at::Device device)
    : sums_(at::zeros({tensors}, at::TensorOptions(at::kLong).device(device))) {}

void DeviceHashes::Add(int tensor, int64_t first_position, const at::Tensor& values) {
  StartOn(sums_.device(), "hash_elements", [&](void* stream) {
    return LaunchHashElements(values.const_data_ptr(), static_cast<int>(values.element_size()), first_position,
                              values.numel(), static_cast<uint64_t*>(sums_.mutable_data_ptr()) + tensor, stream);
  });
}

std::vector<uint64_t> DeviceHashes::Wait() const {
  const at::Tensor here = sums_.cpu();
  const auto* sums = static_cast<const uint64_t*>(here.const_data_ptr());
  return {sums, sums + here.numel()};
}

}  // namespace quartet
