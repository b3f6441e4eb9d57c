#include "core/run_folder/run_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "core/base/testing/scratch_folder.h"
#include "core/network/host_name.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RunLock, RefusesASecondHolderAndNamesTheFirst) {
  const ScratchFolder scratch;
  const auto first = RunLock::Take(scratch.path());
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = RunLock::Take(scratch.path()).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(
      std::string(second.message()),
      AllOf(HasSubstr(scratch.path()), HasSubstr(absl::StrCat("process ", getpid(), " on ", HostName(), ", started 2")),
            HasSubstr("give another run_dir")));
}

// flock asks for no more than an open file.
TEST(RunLock, CannotBeHeldByAnotherUser) {
  const ScratchFolder scratch;
  const std::string path = scratch.Write(kRunLockName, "");  // as an earlier version has made it
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  const auto lock = RunLock::Take(scratch.path());
  ASSERT_TRUE(lock.ok()) << lock.status();
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  ASSERT_EQ(seteuid(12345), 0);
  const auto holder = RunLock::HolderOf(scratch.path());
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(holder, "not known: the run is of another user");
}

TEST(RunLock, IsFreeWhenItsHolderIs) {
  const ScratchFolder scratch;
  ASSERT_TRUE(RunLock::Take(scratch.path()).ok());
  EXPECT_TRUE(RunLock::Take(scratch.path()).ok());
}

TEST(RunLock, IsFreeWhenItsProcessWasKilled) {
  const ScratchFolder scratch;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = fork();
  ASSERT_GE(holder, 0);
  if (holder == 0) {
    const auto lock = RunLock::Take(scratch.path());
    const char ok = lock.ok() ? 1 : 0;
    if (write(ready[1], &ok, 1) == 1) pause();
    _exit(1);
  }
  char ok = 0;
  ASSERT_EQ(read(ready[0], &ok, 1), 1);
  EXPECT_EQ(ok, 1);
  EXPECT_THAT(std::string(RunLock::Take(scratch.path()).status().message()),
              HasSubstr(absl::StrCat("process ", holder)));
  kill(holder, SIGKILL);
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
  EXPECT_TRUE(RunLock::Take(scratch.path()).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST(RunLock, IsNotHeldByAProgramThatItsProcessStarted) {
  const ScratchFolder scratch;
  pid_t child = -1;
  {
    const auto lock = RunLock::Take(scratch.path());
    ASSERT_TRUE(lock.ok()) << lock.status();
    int started[2];  // closed by exec
    ASSERT_EQ(pipe2(started, O_CLOEXEC), 0);
    child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      execl("/bin/sleep", "sleep", "600", nullptr);
      _exit(127);
    }
    close(started[1]);
    char none;
    EXPECT_EQ(read(started[0], &none, 1), 0);
    close(started[0]);
  }
  EXPECT_TRUE(RunLock::Take(scratch.path()).ok());
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace quartet
