#include "core/base/time/running_wait.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace quartet {
namespace {

TEST(WaitWhileRunning, EndsWithTheConditionOrTheDeadline) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  EXPECT_FALSE(WaitWhileRunning(changed, lock, Deadline::In(absl::Milliseconds(10)), [] { return false; }));
  EXPECT_TRUE(WaitWhileRunning(changed, lock, Deadline::In(absl::ZeroDuration()), [] { return true; }));
  int asked = 0;
  EXPECT_TRUE(WaitWhileRunning(changed, lock, Deadline::Never(), [&] { return ++asked == 3; }));
}

// Waits for half a second for what comes through the pipe: whether it came.
bool ComesThrough(int pipe_end) {
  std::mutex mutex;
  std::condition_variable changed;
  bool came = false;
  std::thread reader([&] {
    char byte = 0;
    const bool read_one = read(pipe_end, &byte, 1) == 1;
    const std::lock_guard lock(mutex);
    came = read_one;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  const bool in_time = WaitWhileRunning(changed, lock, Deadline::In(absl::Milliseconds(500)), [&] { return came; });
  lock.unlock();
  reader.join();
  return in_time;
}

TEST(WaitWhileRunning, HearsAfterAStopWhatComesThen) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) _exit(ComesThrough(ends[0]) ? 0 : 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  kill(child, SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "it took the time for passed";
  for (const int end : ends) close(end);
}

}  // namespace
}  // namespace quartet
