#include "core/hardware/device.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

TEST(Device, OfTheCpuAndOfPlansIsAlwaysReady) {
  EXPECT_TRUE(EnterDevice(at::kCPU).ok());
  EXPECT_TRUE(EnterDevice(at::kMeta).ok());
  GiveBackDeviceMemory();
}

// Of builds without CUDA the one, of those with it the other.
TEST(Device, ThatIsNotThereIsAnErrorThatSaysWhatIsMissing) {
  const absl::Status status = EnterDevice(at::Device(at::kCUDA, 100));
  const bool has_cuda = !absl::IsInvalidArgument(status);
  EXPECT_EQ(status.code(), has_cuda ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(has_cuda ? "the rank is number 100 on this host, which has " : "build with --config=cuda"));
}

}  // namespace
}  // namespace quartet
