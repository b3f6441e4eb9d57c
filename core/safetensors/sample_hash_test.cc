#include "core/safetensors/sample_hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/testing/scratch_folder.h"
#include "core/safetensors/writer.h"

namespace quartet {
namespace {

constexpr int64_t kElements = 4000;

class SampleHash : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& tensor, std::vector<float> values) {
    auto writer = SafetensorsWriter::Create(scratch_.path() + "/" + path, {{tensor, Dtype::kF32, {kElements}}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    values.resize(kElements);
    ASSERT_TRUE((*writer)->Write(0, 0, values.data(), kElements * sizeof(float)).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }
  uint64_t HashOf(const std::string& path) const {
    return HashSamples(**CheckpointReader::OpenFile(scratch_.path() + "/" + path)).value();
  }

  ScratchFolder scratch_;
};

TEST_F(SampleHash, IsOfNamesAndElementsAtTheBeginningAndInTheMiddle) {
  Write("a", "weight", {1});
  Write("again", "weight", {1});
  Write("begin", "weight", {2});
  Write("name", "other", {1});
  std::vector<float> values(kElements);
  values[0] = 1;
  values[kElements / 2 + 100] = 1;
  Write("middle", "weight", values);
  EXPECT_EQ(HashOf("again"), HashOf("a"));
  for (const char* other : {"begin", "name", "middle"}) EXPECT_NE(HashOf(other), HashOf("a")) << other;
}

TEST_F(SampleHash, IsTheSameHoweverTensorsAreDividedAmongFiles) {
  auto writer = SafetensorsWriter::Create(scratch_.path() + "/whole.safetensors",
                                          {{"a", Dtype::kF32, {kElements}}, {"b", Dtype::kF32, {kElements}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> values(kElements, static_cast<float>(i));
    ASSERT_TRUE((*writer)->Write(i, 0, values.data(), kElements * sizeof(float)).ok());
  }
  ASSERT_TRUE((*writer)->Close().ok());
  Write("model-00001-of-00002.safetensors", "b", std::vector<float>(kElements, 1));
  Write("model-00002-of-00002.safetensors", "a", {});
  scratch_.Write(
      "model.safetensors.index.json",
      R"({"weight_map": {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}})");
  const auto divided = CheckpointReader::Open(scratch_.path());
  ASSERT_TRUE(divided.ok()) << divided.status();
  EXPECT_EQ(HashSamples(**divided).value(), HashOf("whole.safetensors"));
}

}  // namespace
}  // namespace quartet
