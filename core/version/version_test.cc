#include "core/version/version.h"

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

}  // namespace
}  // namespace quartet
