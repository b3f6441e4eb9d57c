#include "core/base/files/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "core/base/files/files.h"

namespace quartet {
namespace {

std::string FileWith(const std::string& content) {
  const std::string path = ::testing::TempDir() + "/input";
  EXPECT_TRUE(AtomicWriteFile(path, content).ok());
  return path;
}

TEST(InputFile, ReadsAnyPartUpToTheEnd) {
  const absl::StatusOr<InputFile> file = InputFile::Open(FileWith("0123456789"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes(), 10u);
  std::string text(4, '\0');
  EXPECT_EQ(file->ReadAt(3, 4, text.data()).value(), 4u);
  EXPECT_EQ(text, "3456");
  EXPECT_EQ(file->ReadAt(8, 4, text.data()).value(), 2u);
  EXPECT_EQ(text.substr(0, 2), "89");
  EXPECT_EQ(file->ReadAt(10, 4, text.data()).value(), 0u);
}

TEST(InputFile, IsClosedOnceByWhoeverHasItLast) {
  int fd = -1;
  {
    InputFile first = InputFile::Open(FileWith("x")).value();
    fd = first.fd();
    const InputFile last = std::move(first);
    EXPECT_EQ(last.fd(), fd);
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  InputFile given = InputFile::Open(FileWith("x")).value();
  fd = InputFile(given.Release()).fd();
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

TEST(InputFile, SaysWhyItCannotBeOpenedOrRead) {
  const std::string path = FileWith("x");
  EXPECT_EQ(InputFile::Open("/nonexistent/file").status(),
            absl::NotFoundError("cannot open /nonexistent/file: No such file or directory"));
  EXPECT_EQ(InputFile::Open(path + "/below").status(),
            absl::NotFoundError("cannot open " + path + "/below: Not a directory"));
  const InputFile for_writing(open(path.c_str(), O_WRONLY), path);
  char byte;
  EXPECT_EQ(for_writing.ReadAt(0, 1, &byte).status(),
            absl::UnavailableError("cannot read " + path + ": Bad file descriptor"));
}

}  // namespace
}  // namespace quartet
