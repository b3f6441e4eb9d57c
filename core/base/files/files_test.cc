#include "core/base/files/files.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace quartet {
namespace {

std::string TempFolder() {
  std::string folder = ::testing::TempDir() + "/files_XXXXXX";
  return mkdtemp(folder.data());
}

TEST(Files, ReadsBackWhatWasWritten) {
  const std::string path = TempFolder() + "/file";
  const std::string content("a\0b\n", 4);
  ASSERT_TRUE(AtomicWriteFile(path, content).ok());
  EXPECT_EQ(ReadFile(path).value(), content);
  ASSERT_TRUE(AtomicWriteFile(path, "shorter").ok());
  EXPECT_EQ(ReadFile(path).value(), "shorter");
}

TEST(Files, AreReadToTheirEndWhateverSizeTheySay) {
  EXPECT_NE(ReadFile("/proc/self/status").value().find("Name:"), std::string::npos);
  const std::string path = TempFolder() + "/large", content(200'000, 'x');
  ASSERT_TRUE(AtomicWriteFile(path, content).ok());
  EXPECT_EQ(ReadFile(path).value(), content);
}

TEST(Files, MayBeBounded) {
  const std::string path = TempFolder() + "/file";
  ASSERT_TRUE(AtomicWriteFile(path, "12345").ok());
  EXPECT_EQ(ReadTextFile(path, 5).value(), "12345");
  EXPECT_EQ(ReadTextFile(path, 4).status(), absl::InvalidArgumentError(path + ": 5 bytes long; at most 4 are allowed"));
  const absl::StatusOr<std::string> no_size = ReadTextFile("/proc/self/maps", 4);
  EXPECT_TRUE(absl::IsInvalidArgument(no_size.status())) << no_size.status();
}

TEST(Files, LeaveNothingBesideTheFileAndKeepTheMode) {
  const std::string folder = TempFolder();
  ASSERT_TRUE(AtomicWriteFile(folder + "/key", "secret", 0600).ok());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_EQ(entry.path().filename(), "key");
    ++files;
  }
  EXPECT_EQ(files, 1);
  struct stat info;
  ASSERT_EQ(stat((folder + "/key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

// Whoever wants a run to be private says so by it, once.
TEST(Files, HaveTheModeThatTheUmaskLeaves) {
  const std::string path = TempFolder() + "/file";
  for (const mode_t mask : {0022, 0077}) {
    const mode_t before = umask(mask);
    EXPECT_TRUE(AtomicWriteFile(path, "x").ok());
    umask(before);
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0644 & ~mask);
  }
}

TEST(Files, NameTheMissingFile) {
  absl::Status status = ReadFile("/nonexistent/file").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/nonexistent/file"), std::string::npos) << status;
  status = AtomicWriteFile("/nonexistent/file", "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/nonexistent/file"), std::string::npos) << status;
}

TEST(Files, RefuseWhatIsNoRegularFileWithoutReadingIt) {
  const std::string folder = TempFolder(), pipe = folder + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ReadFile(pipe).status(), absl::InvalidArgumentError(pipe + " is not a regular file"));
  EXPECT_EQ(ReadFile("/dev/zero").status(), absl::InvalidArgumentError("/dev/zero is not a regular file"));
  EXPECT_EQ(ReadFile(folder).status(), absl::InvalidArgumentError(folder + " is a folder, not a regular file"));
  EXPECT_TRUE(ReadFile("/proc/self/stat").ok());
}

TEST(Files, MakeDirsMakesAllAndRefusesAFileInTheWay) {
  const std::string folder = TempFolder();
  ASSERT_TRUE(MakeDirs(folder + "/a/b/c").ok());
  ASSERT_TRUE(MakeDirs(folder + "/a/b/c").ok());
  EXPECT_TRUE(std::filesystem::is_directory(folder + "/a/b/c"));
  ASSERT_TRUE(AtomicWriteFile(folder + "/file", "x").ok());
  EXPECT_FALSE(MakeDirs(folder + "/file").ok());
  EXPECT_FALSE(MakeDirs(folder + "/file/below").ok());
}

TEST(Files, ResolvesAgainstTheFolderThatTheUserIsIn) {
  setenv("BUILD_WORKING_DIRECTORY", "/home/user", 1);
  EXPECT_EQ(ResolveUserPath("runs/x"), "/home/user/runs/x");
  EXPECT_EQ(ResolveUserPath("../x"), "/home/x");
  EXPECT_EQ(ResolveUserPath("/abs"), "/abs");
  EXPECT_EQ(ResolveUserPath("runs/x//"), "/home/user/runs/x");
  EXPECT_EQ(ResolveUserPath("/"), "/");
  EXPECT_EQ(ResolveUserPath(""), "");
  unsetenv("BUILD_WORKING_DIRECTORY");
  EXPECT_EQ(ResolveUserPath("x"), std::filesystem::current_path().string() + "/x");
}

}  // namespace
}  // namespace quartet
