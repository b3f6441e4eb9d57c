#include "core/version/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/version/release.h"
#include "proto/protocol_version.h"

namespace quartet {
namespace {

TEST(VersionText, OfAProgramOutsideOfABundleHasReleaseAndProtocol) {
  EXPECT_EQ(VersionText(),
            absl::StrCat("quartet ", kQuartetVersion, ", built from its sources, wire protocol ", kProtocolVersion));
}

TEST(CheckProtocol, HoldsWhereOneVersionIsInCommon) {
  EXPECT_TRUE(CheckProtocol("scorer", "", kProtocolVersion - 5, kMinProtocolVersion).ok());
  EXPECT_TRUE(CheckProtocol("scorer", "", kProtocolVersion, kProtocolVersion + 5).ok());
  for (const int32_t other : {kMinProtocolVersion - 1, kProtocolVersion + 1}) {
    EXPECT_THAT(CheckProtocol("scorer at b:1", "", other, other).message(),
                testing::HasSubstr(absl::StrCat("scorer at b:1 (of an unknown version) speaks protocol versions ",
                                                other, " to ", other, "; this orchestrator (")));
  }
}

}  // namespace
}  // namespace quartet
