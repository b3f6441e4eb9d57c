#include "core/config/field_paths.h"

#include "gtest/gtest.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

TEST(IsFieldPath, KnowsFieldsAtAnyDepthAndInLists) {
  const google::protobuf::Descriptor& type = *RunConfig::descriptor();
  for (const char* path : {"run_dir", "actor", "actor.dtype", "reward.source", "reward.source.0",
                           "reward.source.3.rule", "cluster.node_names.1"}) {
    EXPECT_TRUE(IsFieldPath(path, type)) << path;
  }
  for (const char* path : {"", "nonsense", "actor.nonsense", "run_dir.nonsense", "reward.source.0.nonsense"}) {
    EXPECT_FALSE(IsFieldPath(path, type)) << path;
  }
}

}  // namespace
}  // namespace quartet
