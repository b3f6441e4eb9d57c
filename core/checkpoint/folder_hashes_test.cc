#include "core/checkpoint/folder_hashes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/checkpoint/hashed_text.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FolderHashesTest : public ::testing::Test {
 protected:
  FolderHashesTest() {
    fs::create_directories(folder_ + "/inside");
    Write("config.json", "{}");
    Write("model.safetensors", std::string(3'000'000, 'x') + "y");
    Write("inside/template.jinja", "");
  }
  ~FolderHashesTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }
  std::string Damage(const FolderHashes& expected) const {
    const absl::Status status = VerifyFolder(folder_, expected);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    return std::string(status.message());
  }

  const std::string folder_ = ::testing::TempDir() + "/folder_hashes_test_" + std::to_string(getpid());
};

TEST_F(FolderHashesTest, FindABitThatIsFlippedAFileThatIsCutAndOneThatIsGone) {
  const auto hashes = HashFolder(folder_);
  ASSERT_TRUE(hashes.ok()) << hashes.status();
  ASSERT_EQ(hashes->size(), 3);
  EXPECT_EQ(hashes->at("model.safetensors").bytes, 3'000'001);
  Write("README.md", "mine");
  EXPECT_TRUE(VerifyFolder(folder_, *hashes).ok());
  for (const size_t at : {size_t{0}, size_t{1'048'576}, size_t{3'000'000}}) {
    std::string content = std::string(3'000'000, 'x') + "y";
    content[at] ^= 1;
    Write("model.safetensors", content);
    EXPECT_THAT(Damage(*hashes), HasSubstr("/model.safetensors: does not have the bytes"));
  }
  Write("model.safetensors", std::string(3'000'000, 'x'));
  EXPECT_THAT(Damage(*hashes), HasSubstr("has 3000000 bytes, and had 3000001"));
  fs::remove(folder_ + "/config.json");
  EXPECT_THAT(Damage(*hashes), HasSubstr("/config.json: No such file"));
}

TEST_F(FolderHashesTest, EndWithWhoAsksThemTo) {
  const auto stop = [] { return absl::CancelledError("stopped"); };
  EXPECT_EQ(HashFolder(folder_, stop).status(), absl::CancelledError("stopped"));
}

TEST(HashedText, KnowsWhatWasAlteredAnywhere) {
  const std::string text = WithOwnHash("{\n  \"a\": 1\n}\n");
  ASSERT_TRUE(BeginsWithHash(text));
  EXPECT_TRUE(CheckOwnHash(text, "f").ok());
  for (size_t at = 10; at < text.size(); ++at) {
    std::string other = text;
    other[at] ^= 1;
    EXPECT_EQ(CheckOwnHash(other, "f").message(),
              "f: does not have the hash that it begins with: it was cut short or altered");
  }
  EXPECT_FALSE(CheckOwnHash(text.substr(0, text.size() - 1), "f").ok());
  EXPECT_FALSE(BeginsWithHash("{\"a\": 1}"));
  EXPECT_FALSE(BeginsWithHash(text.substr(0, 20)));
}

}  // namespace
}  // namespace quartet
