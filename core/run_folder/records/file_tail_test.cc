#include "core/run_folder/records/file_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/files/files.h"
#include "core/base/testing/scratch_folder.h"
#include "core/run_folder/records/append_file.h"

namespace quartet {
namespace {

class FileTailTest : public ::testing::Test {
 protected:
  void Append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  std::string Read() {
    std::string lines;
    EXPECT_TRUE(tail_.Read(&lines).ok());
    return lines;
  }

  const ScratchFolder scratch_;
  const std::string path_ = scratch_.path() + "/records";
  FileTail tail_{path_};
};

TEST_F(FileTailTest, GivesWholeLinesAsTheyCome) {
  EXPECT_EQ(Read(), "");
  Append("one\ntw");
  EXPECT_EQ(Read(), "one\n");
  EXPECT_EQ(Read(), "");
  Append("o\nthree\n");
  EXPECT_EQ(Read(), "two\nthree\n");
  EXPECT_FALSE(tail_.began_anew());
}

TEST_F(FileTailTest, BeginsAnewWhereAnotherFileHasTheName) {
  Append("one\ntwo\n");
  EXPECT_EQ(Read(), "one\ntwo\n");
  ASSERT_TRUE(AtomicWriteFile(path_, "one\nfour, which is longer\n").ok());
  EXPECT_EQ(Read(), "one\nfour, which is longer\n");
  EXPECT_TRUE(tail_.began_anew());
  Append("five\n");
  EXPECT_EQ(Read(), "five\n");
  EXPECT_FALSE(tail_.began_anew());
}

TEST_F(FileTailTest, BeginsAnewWhereTheFileIsShorterOrGone) {
  Append("one\ntwo\n");
  Read();
  std::filesystem::resize_file(path_, 4);
  EXPECT_EQ(Read(), "one\n");
  EXPECT_TRUE(tail_.began_anew());
  std::filesystem::remove(path_);
  EXPECT_EQ(Read(), "");
  EXPECT_TRUE(tail_.began_anew());
}

TEST_F(FileTailTest, BeginsAtTheEndOfAFileOfWhichNoMoreIsAskedFor) {
  FileTail last(path_, 9);
  std::string lines;
  Append("one\ntwo\nthree\n");
  ASSERT_TRUE(last.Read(&lines).ok());
  EXPECT_EQ(lines, "wo\nthree\n");
  Append("four and five\n");
  ASSERT_TRUE(last.Read(&lines).ok());
  EXPECT_EQ(lines, "four and five\n");
}

TEST_F(FileTailTest, SaysWhatIsNoFile) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  std::string lines;
  EXPECT_THAT(std::string(tail_.Read(&lines).message()), ::testing::EndsWith("records is not a regular file"));
  // Nor is it waited for where it is to be written.
  EXPECT_THAT(std::string(AppendFile::Open(path_).status().message()),
              ::testing::HasSubstr("cannot open " + path_ + ": "));
}

}  // namespace
}  // namespace quartet
