#include "core/comm/transport/shared_staging.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace quartet {
namespace {

using Staging = std::unique_ptr<SharedStaging>;

std::vector<Staging> Attached(int size) {
  std::vector<Staging> ranks;
  ranks.push_back(*SharedStaging::Create(0, size));
  for (int r = 1; r < size; ++r) {
    auto attached = SharedStaging::Attach(ranks[0]->handle(), r, size);
    EXPECT_TRUE(attached.ok()) << attached.status();
    ranks.push_back(*std::move(attached));
  }
  ranks[0]->AllAttached();
  return ranks;
}

// Passes one number a round from every rank to every other; whether all arrived as they should.
bool PassNumbers(SharedStaging& staging, int rank, int size, int64_t rounds) {
  int64_t written = 0, read = 0;
  bool right = true;
  while (read < rounds) {
    const uint32_t bell = staging.bell();
    if (read < written && staging.CanRead(read)) {
      for (int r = 0; r < size; ++r) {
        int64_t number = 0;
        std::memcpy(&number, staging.slot(r, read), sizeof(number));
        right = right && number == read * 100 + r && staging.meaning(r, read).collective == read;
      }
      staging.DoneReading(read++);
    } else if (written < rounds && staging.CanWrite(written)) {
      const int64_t number = written * 100 + rank;
      std::memcpy(staging.slot(rank, written), &number, sizeof(number));
      staging.Written(written, {.collective = written, .kind = 0, .bytes = 8});
      ++written;
    } else {
      staging.Sleep(bell, absl::Seconds(30));
    }
  }
  return right;
}

TEST(SharedStaging, ThreadsPassWhatTheyWriteRoundByRound) {
  for (const int size : {1, 2, 5}) {
    const std::vector<Staging> ranks = Attached(size);
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] { EXPECT_TRUE(PassNumbers(*ranks[r], r, size, 500)); });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST(SharedStaging, ProcessesPassWhatTheyWriteRoundByRound) {
  const int size = 3;
  auto creator = SharedStaging::Create(0, size);
  ASSERT_TRUE(creator.ok()) << creator.status();
  std::vector<pid_t> children;
  for (int r = 1; r < size; ++r) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto attached = SharedStaging::Attach((*creator)->handle(), r, size);
      _exit(attached.ok() && PassNumbers(**attached, r, size, 500) ? 0 : 1);
    }
    children.push_back(pid);
  }
  EXPECT_TRUE(PassNumbers(**creator, 0, size, 500));
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(SharedStaging, ARankRunsNoFurtherAheadThanItsSlots) {
  const std::vector<Staging> ranks = Attached(2);
  for (int64_t round = 0; round < SharedStaging::kSlots; ++round) {
    ASSERT_TRUE(ranks[0]->CanWrite(round));
    ranks[0]->Written(round, {});
  }
  EXPECT_FALSE(ranks[0]->CanWrite(SharedStaging::kSlots));
  EXPECT_FALSE(ranks[0]->CanRead(0));
  EXPECT_TRUE(ranks[0]->HoldsUp(1, SharedStaging::kSlots, 0));
  ranks[1]->Written(0, {});
  EXPECT_TRUE(ranks[0]->CanRead(0));
  ranks[0]->DoneReading(0);
  EXPECT_FALSE(ranks[0]->CanWrite(SharedStaging::kSlots));
  EXPECT_TRUE(ranks[0]->HoldsUp(1, SharedStaging::kSlots, 1));
  ranks[1]->DoneReading(0);
  EXPECT_TRUE(ranks[0]->CanWrite(SharedStaging::kSlots));
}

TEST(SharedStaging, RefusesWhatIsNotTheGroups) {
  auto creator = SharedStaging::Create(0, 2);
  ASSERT_TRUE(creator.ok()) << creator.status();
  const std::string handle = (*creator)->handle();
  EXPECT_FALSE(SharedStaging::Attach("none", 1, 2).ok());
  EXPECT_FALSE(SharedStaging::Attach(handle, 1, 3).ok()) << "of another size";
  EXPECT_FALSE(SharedStaging::Attach(handle.substr(0, handle.rfind(',')) + ",1", 1, 2).ok()) << "another token";
  (*creator)->AllAttached();
  EXPECT_FALSE(SharedStaging::Attach(handle, 1, 2).ok()) << "closed";
}

}  // namespace
}  // namespace quartet
