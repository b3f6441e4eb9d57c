#include "core/base/time/pause.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/base/time/stopwatch.h"

namespace quartet {
namespace {

TEST(PauseFor, LastsUntilItsEndWhereNobodyAsksForAnother) {
  const Stopwatch stopwatch;
  EXPECT_TRUE(PauseFor({}, absl::Milliseconds(20)));
  EXPECT_GE(stopwatch.Seconds(), 0.02);
}

TEST(PauseFor, EndsWhenTheThreadIsAskedToEnd) {
  std::atomic<bool> begun = false;
  std::jthread paused([&begun](const std::stop_token& stop) {
    begun = true;
    begun.notify_all();
    EXPECT_FALSE(PauseFor(stop, absl::Hours(24)));
  });
  begun.wait(false);
}

TEST(PauseFor, IsNoneOfAThreadThatIsToEndAlready) {
  std::stop_source source;
  source.request_stop();
  EXPECT_FALSE(PauseFor(source.get_token(), absl::Hours(24)));
}

}  // namespace
}  // namespace quartet
