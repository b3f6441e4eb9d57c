#include "core/hardware/stealing_for.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace quartet {
namespace {

class StealingForTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(4); }
};

TEST_F(StealingForTest, RunsEachTaskOnce) {
  for (const int64_t count : {0, 1, 3, 4, 5, 1000}) {
    for (const int64_t grain : {1, 3, 2000}) {
      std::vector<std::atomic<int>> runs(count);
      StealingFor(count, grain, [&](int64_t task) { ++runs[task]; });
      for (int64_t task = 0; task < count; ++task) EXPECT_EQ(runs[task], 1) << task << " of " << count;
    }
  }
}

TEST_F(StealingForTest, RunsAllWithinAnotherLoop) {
  std::vector<std::atomic<int>> runs(40);
  at::parallel_for(0, 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      StealingFor(10, 1, [&](int64_t task) { ++runs[10 * part + task]; });
    }
  });
  for (const auto& each : runs) EXPECT_EQ(each, 1);
}

TEST_F(StealingForTest, OthersTakeTheTasksOfAThreadThatIsHeldUp) {
  constexpr int64_t kTasks = 40;
  std::atomic<int64_t> others = 0;  // that are done
  bool taken = false;
  StealingFor(kTasks, 1, [&](int64_t task) {
    if (task > 0) {
      ++others;
      return;
    }
    // Waits, with nine tasks of its own behind it, until all others are done.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (others < kTasks - 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    taken = others == kTasks - 1;
  });
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace quartet
