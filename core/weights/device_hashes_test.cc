#include "core/weights/device_hashes.h"

#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "core/hardware/device.h"
#include "core/weights/tensor_hash.h"

namespace quartet {
namespace {

TEST(DeviceHashes, AreThoseOfTheCpu) {
  const at::Device gpu(at::kCUDA, 0);
  const absl::Status entered = EnterDevice(gpu);
  if (!entered.ok()) GTEST_SKIP() << entered;
  for (const auto& [type, dtype] : {std::pair{at::kShort, Dtype::kBF16}, std::pair{at::kInt, Dtype::kF32}}) {
    const at::Tensor values = at::randint(-30000, 30000, {3'000'001}, type);
    const at::Tensor there = values.to(gpu);
    DeviceHashes hashes(/*tensors=*/3, gpu);
    hashes.Add(0, int64_t{1} << 40, there);
    hashes.Add(2, 0, there.narrow(0, 0, 7));  // in parts, the second of which begins anywhere
    hashes.Add(2, 7, there.narrow(0, 7, 1'000'003));
    EXPECT_EQ(hashes.Wait(),
              (std::vector<uint64_t>{HashElements(values.const_data_ptr(), dtype, int64_t{1} << 40, 3'000'001), 0,
                                     HashElements(values.const_data_ptr(), dtype, 0, 1'000'010)}));
  }
}

}  // namespace
}  // namespace quartet
