#include "core/memory/catch_exceptions.h"

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>

#include "core/memory/block_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CaughtExceptions : public ::testing::Test {
 protected:
  template <typename Error>
  absl::Status Caught(const Error& error) {
    return CatchExceptions("policy update", ledger_, [&error]() -> absl::Status { throw error; });
  }

  Ledger ledger_;
  const LedgerEntry optimizer_{&ledger_, MemoryCategory::kOptimizer, 1000};
};

TEST_F(CaughtExceptions, WhatTheWorkReturnsPassesThrough) {
  EXPECT_EQ(CatchExceptions("a", ledger_, [] { return absl::OkStatus(); }), absl::OkStatus());
  EXPECT_EQ(CatchExceptions("a", ledger_, [] { return absl::NotFoundError("b"); }), absl::NotFoundError("b"));
}

TEST_F(CaughtExceptions, AnOrdinaryErrorIsInternal) {
  EXPECT_EQ(Caught(std::runtime_error("shapes differ")), absl::InternalError("policy update: shapes differ"));
}

TEST_F(CaughtExceptions, ABudgetErrorKeepsItsMessage) {
  EXPECT_EQ(Caught(MemoryBudgetError("too much")), absl::ResourceExhaustedError("policy update: too much"));
}

TEST_F(CaughtExceptions, MemoryThatRanOutUnseenIsToldWithWhatTheLedgerHolds) {
  const absl::Status plain = Caught(std::bad_alloc());
  EXPECT_EQ(plain.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(plain.message()), AllOf(StartsWith("policy update: out of memory. "),
                                                  HasSubstr("optimizer 1000 bytes"), HasSubstr("for optimizer: ")));
  const absl::Status torch = Caught(std::runtime_error(
      "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes. Error code 12\nat frame 1"));
  EXPECT_EQ(torch.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(torch.message()), AllOf(HasSubstr("you tried to allocate 8 bytes"),
                                                  HasSubstr("optimizer 1000 bytes"), Not(HasSubstr("frame"))));
}

// The system takes pages that it is offered, and no others.
TEST_F(CaughtExceptions, WhatTheWorkFreesIsOfferedToTheSystemHoweverItEnds) {
  constexpr size_t kBytes = size_t{8} << 20;
  char* block = nullptr;
  const auto first_byte_after_pressure = [&block] {
    block[0] = 1;
    HostBlocks().Free(block);
    EXPECT_EQ(madvise(block, kBytes, MADV_PAGEOUT), 0);
    EXPECT_EQ(HostBlocks().Allocate(kBytes), block);
    return block[0];
  };
  for (const bool throws : {false, true}) {
    const absl::Status status = CatchExceptions("a", ledger_, [&]() -> absl::Status {
      block = static_cast<char*>(HostBlocks().Allocate(kBytes));
      if (madvise(block, kBytes, MADV_PAGEOUT) != 0) return absl::UnavailableError("");
      EXPECT_EQ(first_byte_after_pressure(), 1);
      if (throws) throw std::runtime_error("b");
      return absl::OkStatus();
    });
    if (absl::IsUnavailable(status)) GTEST_SKIP() << "the kernel cannot be asked to take pages";
    EXPECT_EQ(status.ok(), !throws);
    EXPECT_EQ(first_byte_after_pressure(), 0);
    HostBlocks().Free(block);
  }
}

}  // namespace
}  // namespace quartet
