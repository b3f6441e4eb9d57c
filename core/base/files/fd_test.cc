#include "core/base/files/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <thread>

namespace quartet {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

Fd MemoryFile() { return Fd(memfd_create("test", MFD_CLOEXEC)); }

TEST(Fd, IsClosedOnceByWhoeverHasItLast) {
  int fd = -1;
  {
    Fd first = MemoryFile();
    fd = first.get();
    const Fd last = std::move(first);
    EXPECT_FALSE(first.is_open());
    EXPECT_EQ(last.get(), fd);
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(Fd, IsClosedWhereAnotherTakesItsPlace) {
  Fd file = MemoryFile();
  const int before = file.get();
  file = MemoryFile();
  EXPECT_FALSE(IsOpen(before));
  EXPECT_TRUE(IsOpen(file.get()));
}

TEST(Fd, IsNotClosedOnceItIsGivenAway) {
  const int fd = MemoryFile().Release();
  EXPECT_TRUE(IsOpen(fd));
  Fd(fd).Reset();
  EXPECT_FALSE(IsOpen(fd));
}

TEST(WriteAll, WritesMoreThanAPipeTakesAtOnce) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd out(ends[0]);
  const std::string bytes(1 << 20, 'x');
  std::jthread writer([in = Fd(ends[1]), &bytes] { EXPECT_TRUE(WriteAll(in.get(), bytes)); });
  std::string got;
  char buffer[1 << 12];
  for (ssize_t n; (n = read(out.get(), buffer, sizeof(buffer))) > 0; got.append(buffer, n)) {
  }
  EXPECT_EQ(got, bytes);
}

TEST(WriteAll, WritesFromAnOffsetOn) {
  const Fd file = MemoryFile();
  EXPECT_TRUE(WriteAll(file.get(), "0123456789"));
  EXPECT_TRUE(WriteAllAt(file.get(), 3, "abc"));
  char text[10];
  EXPECT_EQ(pread(file.get(), text, 10, 0), 10);
  EXPECT_EQ(std::string(text, 10), "012abc6789");
}

TEST(WriteAll, SaysWhyItCannot) {
  const Fd file(open("/dev/full", O_WRONLY | O_CLOEXEC));
  EXPECT_FALSE(WriteAll(file.get(), "x"));
  EXPECT_EQ(errno, ENOSPC);
}

}  // namespace
}  // namespace quartet
