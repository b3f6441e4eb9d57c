#include "core/training/calls/checkpoint_calls.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(CheckpointId, IsAnIdentifierAndNeverAPath) {
  EXPECT_TRUE(CheckCheckpointId("step_12-a").ok());
  EXPECT_TRUE(CheckCheckpointId(std::string(64, 'a')).ok());
  for (const std::string& id : {std::string(), std::string(65, 'a'), std::string(".."), std::string("a/b"),
                                std::string("A"), std::string("a\0b", 3)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckCheckpointId(id))) << id;
  }
}

}  // namespace
}  // namespace quartet
