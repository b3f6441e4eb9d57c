#include "core/hardware/cuda_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(VisibleGpus, HaveTheirPciAddressesAsTheSystemWritesThem) {
  EXPECT_THAT(VisibleGpus("core/hardware/libfake_cuda.so"), ElementsAre("0000:9b:00.0", "", "0000:1b:00.0"));
}

TEST(VisibleGpus, AreNoneWithoutADriver) { EXPECT_THAT(VisibleGpus("libno_such_driver.so.1"), IsEmpty()); }

}  // namespace
}  // namespace quartet
