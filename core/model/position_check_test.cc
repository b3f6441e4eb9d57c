#include "core/model/position_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CheckLengthInPositions, AllowsWhatPositionsAndWindowHold) {
  ModelConfig config;
  config.max_position_embeddings = 128;
  const auto error = [&config](int64_t length) {
    return std::string(CheckLengthInPositions(config, "models/m", "rollout.max_model_len", length).message());
  };
  EXPECT_EQ(error(0), "");
  EXPECT_EQ(error(128), "");
  EXPECT_THAT(error(129), StartsWith("rollout.max_model_len is 129; at most 128 is allowed, the "
                                     "max_position_embeddings of models/m/config.json"));
  config.sliding_window = 64;
  EXPECT_EQ(error(64), "");
  EXPECT_THAT(error(65), HasSubstr("sliding_window"));
}

}  // namespace
}  // namespace quartet
