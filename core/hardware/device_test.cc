#include "core/hardware/device.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(Device, OfTheCpuAndOfPlansIsAlwaysReady) {
  EXPECT_TRUE(EnterDevice(at::kCPU).ok());
  EXPECT_TRUE(EnterDevice(at::kMeta).ok());
  GiveBackDeviceMemory();
}

// Of builds without CUDA the one, of those with it the other.
TEST(Device, ThatIsNotThereIsAnErrorThatSaysWhatIsMissing) {
  const absl::Status status = EnterDevice(at::Device(at::kCUDA, 100));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AnyOf(HasSubstr("build with --config=cuda"),
                                                   HasSubstr("the rank is number 100 on this host, which has ")));
}

}  // namespace
}  // namespace quartet
