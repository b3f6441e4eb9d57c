#include "core/terminal/folder_growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace quartet {
namespace {

using ::testing::HasSubstr;

class FolderGrowthTest : public ::testing::Test {
 protected:
  FolderGrowthTest() : folder_(testing::TempDir() + "/growing") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/policy");
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    in_ = fdopen(ends[0], "r");
    out_ = fdopen(ends[1], "w");
  }
  ~FolderGrowthTest() override {
    std::fclose(out_);
    std::fclose(in_);
  }
  void Write(const std::string& name, size_t mebibytes) {
    std::ofstream(folder_ + "/" + name) << std::string(mebibytes << 20, 'x');
  }
  // The first line that has `words`.
  std::string LineWith(const std::string& words) {
    char line[256] = "";
    while (std::string(line).find(words) == std::string::npos && std::fgets(line, sizeof line, in_) != nullptr) {
    }
    return line;
  }

  const std::string folder_;
  std::FILE* in_ = nullptr;
  std::FILE* out_ = nullptr;
};

TEST_F(FolderGrowthTest, IsABarWhereItsEndIsKnown) {
  Write("policy/weights", 3);
  TerminalView view(out_, false, absl::Milliseconds(1));
  view.Begin("checkpoint", 12);
  const FolderGrowth growth(view, folder_, int64_t{12} << 20);
  EXPECT_THAT(LineWith("3/12"), HasSubstr("checkpoint"));
  Write("state", 2);
  EXPECT_THAT(LineWith("5/12"), HasSubstr("MiB"));
}

TEST_F(FolderGrowthTest, IsWhatIsThereWhereItsEndIsNotKnown) {
  Write("policy/weights", 2);
  TerminalView view(out_, false, absl::Milliseconds(1));
  view.Begin("checkpoint");
  const FolderGrowth growth(view, folder_, 0);
  EXPECT_THAT(LineWith("MiB"), HasSubstr("2 MiB written"));
}

TEST_F(FolderGrowthTest, LeavesTheBytesThatWereWritten) {
  TerminalView view(out_, false);
  int64_t bytes = 0;
  EXPECT_EQ(ShowGrowth(view, folder_, &bytes,
                       [&] {
                         Write("policy/weights", 3);
                         return std::string("done");
                       }),
            "done");
  EXPECT_EQ(bytes, 3 << 20);
}

TEST_F(FolderGrowthTest, OfNothingIsNothing) {
  EXPECT_EQ(BytesBelow(folder_ + "/none"), 0);
  EXPECT_EQ(BytesBelow(folder_), 0);
  Write("policy/weights", 1);
  EXPECT_EQ(BytesBelow(folder_), 1 << 20);
}

}  // namespace
}  // namespace quartet
