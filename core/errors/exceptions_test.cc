#include "core/errors/exceptions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace quartet {
namespace {

using ::testing::HasSubstr;

const std::system_error kNoMoreThreads(std::make_error_code(std::errc::resource_unavailable_try_again));

TEST(Exceptions, SayInASentenceWhatCannotBeHad) {
  EXPECT_EQ(StatusOfException(std::bad_alloc()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(StatusOfException(std::bad_alloc()).message()), HasSubstr("out of memory: "));
  EXPECT_EQ(StatusOfException(kNoMoreThreads).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(StatusOfException(kNoMoreThreads).message()), HasSubstr("no further thread can be made"));
  EXPECT_EQ(StatusOfException(std::runtime_error("odd")), absl::InternalError("odd"));
}

TEST(Exceptions, BecomeTheStatusOfTheWorkThatThrowsThem) {
  EXPECT_EQ(CatchAll([] { return absl::AbortedError("enough"); }), absl::AbortedError("enough"));
  const auto too_much = []() -> absl::StatusOr<size_t> { throw std::bad_alloc(); };
  EXPECT_EQ(CatchAll(too_much).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ExceptionsDeathTest, EndTheProgramWithCode1AndASentenceWhereTheyLeaveAThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto thread_that_throws = [](auto error) {
    EndOnExceptions("rollout");
    std::thread([error] { throw error; }).join();
  };
  EXPECT_EXIT(thread_that_throws(std::bad_alloc()), ::testing::ExitedWithCode(1), "^rollout: out of memory: ");
  EXPECT_EXIT(thread_that_throws(kNoMoreThreads), ::testing::ExitedWithCode(1),
              "^rollout: no further thread can be made: ");
  EXPECT_EXIT(thread_that_throws(std::runtime_error("odd")), ::testing::ExitedWithCode(1),
              "^rollout: an error that was not expected: odd");
  EXPECT_EXIT(thread_that_throws(7), ::testing::ExitedWithCode(1), "^rollout: an error that was not expected");
}

TEST(ExceptionsDeathTest, EndTheProgramWithCode1WhereThreadsRunThatNobodyJoins) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto throw_beside_a_thread = [] {
    EndOnExceptions("rollout");
    try {
      const std::thread runs([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
      throw std::bad_alloc();
    } catch (const std::exception&) {  // comes too late
    }
  };
  EXPECT_EXIT(throw_beside_a_thread(), ::testing::ExitedWithCode(1), "^rollout: memory or a thread could not be had");
}

TEST(ExceptionsDeathTest, OwnInvariantsStillAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto terminate = [] {
    EndOnExceptions("rollout");
    std::terminate();
  };
  EXPECT_EXIT(terminate(), ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace quartet
