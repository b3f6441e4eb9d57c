#include "core/comm/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace quartet {
namespace {

using testing::HasSubstr;

// The watches of all ranks of a group, in one process.
class Ranks {
 public:
  explicit Ranks(int size, std::vector<int> names = {}) : ended_(size), times_told_(size) {
    std::vector<std::string> addresses;
    for (int r = 0; r < size; ++r) {
      auto watch = RankWatch::Open("127.0.0.1");
      EXPECT_TRUE(watch.ok()) << watch.status();
      addresses.push_back((*watch)->address());
      watches_.push_back(*std::move(watch));
      if (static_cast<int>(names.size()) <= r) names.push_back(r);
      ended_[r] = -1;
    }
    for (int r = 0; r < size; ++r) {
      const absl::Status started = watches_[r]->Start(r, addresses, names, [this, r](int64_t first_number) {
        ended_[r] = first_number;
        ++times_told_[r];
      });
      EXPECT_TRUE(started.ok()) << started;
    }
  }

  RankWatch& operator[](int rank) { return *watches_[rank]; }
  void Destroy(int rank) { watches_[rank].reset(); }

  void AllBegin(int64_t number) {
    for (auto& watch : watches_) watch->Begin(number, CollectiveKind::kAllGather, 100);
  }

  // Waits until `rank` has been told that collectives from some number on cannot succeed.
  int64_t EndOf(int rank) {
    while (ended_[rank] < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ended_[rank];
  }
  int TimesToldTo(int rank) const { return times_told_[rank]; }

 private:
  std::vector<std::atomic<int64_t>> ended_;
  std::vector<std::atomic<int>> times_told_;
  std::vector<std::unique_ptr<RankWatch>> watches_;
};

TEST(RankWatch, NamesTheRankThatHasNotCome) {
  Ranks ranks(3);
  ranks.AllBegin(1);
  for (const int rank : {0, 2}) ranks[rank].Begin(2, CollectiveKind::kReduceScatter, 8);
  EXPECT_EQ(ranks[0].Diagnose(2), "rank 1 has not come to collective 2");
}

TEST(RankWatch, BlamesNotThoseWhoWaitForTheSameRankOneCollectiveEarlier) {
  Ranks ranks(3);
  ranks[0].Begin(1, CollectiveKind::kAllGather, 100);
  ranks[0].Begin(2, CollectiveKind::kAllGather, 100);
  ranks[1].Begin(1, CollectiveKind::kAllGather, 100);
  EXPECT_EQ(ranks[0].Diagnose(2), "rank 2 has not come to collective 1");
}

TEST(RankWatch, TellsTheOthersWhatOneHasFoundOut) {
  Ranks ranks(3);
  ranks.AllBegin(1);
  ranks[0].Begin(2, CollectiveKind::kAllGather, 100);
  ranks[1].Begin(2, CollectiveKind::kAllGather, 100);
  ranks[0].Diagnose(2);
  EXPECT_EQ(ranks.EndOf(1), 2);
  EXPECT_EQ(ranks.EndOf(2), 2);
  EXPECT_EQ(ranks[1].Diagnose(2), "rank 2 has not come to collective 2 (found by rank 0)");
}

TEST(RankWatch, AVerdictLeavesEarlierCollectivesAlone) {
  Ranks ranks(3);
  ranks.AllBegin(1);
  for (const int rank : {0, 2}) ranks[rank].Begin(2, CollectiveKind::kAllGather, 100);
  EXPECT_EQ(ranks[0].Diagnose(2), "rank 1 has not come to collective 2");
  EXPECT_EQ(ranks.EndOf(2), 2);
  EXPECT_THAT(ranks[2].Diagnose(1), HasSubstr("all ranks answer"));
}

TEST(RankWatch, WhatARankLeavesUnfinishedAfterAVerdictEndsWithTheVerdict) {
  Ranks ranks(3);
  ranks.AllBegin(1);
  for (const int rank : {0, 2}) ranks[rank].Begin(2, CollectiveKind::kAllGather, 100);
  ranks[0].Diagnose(2);
  // Its first collective ends with the second, and is not judged anew.
  EXPECT_EQ(ranks[0].Diagnose(1), "rank 1 has not come to collective 2");
  ranks.Destroy(0);
  while (ranks.EndOf(2) != 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(ranks[2].Diagnose(1), HasSubstr("rank 1 has not come to collective 2"));
}

TEST(RankWatch, NamesTheRankThatTakesPartInAnotherCollective) {
  Ranks ranks(3, {4, 5, 6});
  ranks.AllBegin(1);
  for (const int rank : {0, 2}) ranks[rank].Begin(2, CollectiveKind::kReduceScatter, 8);
  ranks[1].Begin(2, CollectiveKind::kAllGather, 16);
  EXPECT_EQ(ranks[1].Diagnose(2),
            "rank 5 takes part in another collective: an all-gather of 16 bytes where the others have a "
            "reduce-scatter of 8 bytes");
}

TEST(RankWatch, OfTwoRanksThatDisagreeEachNamesTheOther) {
  Ranks ranks(2);
  ranks[0].Begin(1, CollectiveKind::kReduceScatter, 8);
  ranks[1].Begin(1, CollectiveKind::kAllGather, 8);
  EXPECT_THAT(ranks[0].Diagnose(1), HasSubstr("rank 1 takes part in another collective: an all-gather"));
}

TEST(RankWatch, ARankWithoutAnAnsweringThreadIsMissing) {
  auto mute = RankWatch::Open("127.0.0.1");  // bound, but never started: as the port of a stopped process
  auto asking = RankWatch::Open("127.0.0.1");
  ASSERT_TRUE(mute.ok() && asking.ok());
  ASSERT_TRUE((*asking)->Start(0, {(*asking)->address(), (*mute)->address()}, {0, 1}, [](int64_t) {}).ok());
  (*asking)->Begin(1, CollectiveKind::kAllGather, 100);
  EXPECT_THAT((*asking)->Diagnose(1), HasSubstr("rank 1 does not answer"));
}

// The other answers only once this one runs again.
TEST(RankWatch, ARankThatIsStoppedAsItAsksTakesNobodyForMissing) {
  auto asking = RankWatch::Open("127.0.0.1");
  auto answering = RankWatch::Open("127.0.0.1");
  ASSERT_TRUE(asking.ok() && answering.ok());
  const std::vector<std::string> addresses = {(*asking)->address(), (*answering)->address()};
  const pid_t child = fork();
  if (child == 0) {
    if (!(*asking)->Start(0, addresses, {0, 1}, [](int64_t) {}).ok()) _exit(2);
    (*asking)->Begin(1, CollectiveKind::kAllGather, 100);
    _exit((*asking)->Diagnose(1) == "rank 1 has not come to collective 1" ? 0 : 1);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1950));
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2000));
  kill(child, SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_TRUE((*answering)->Start(1, addresses, {0, 1}, [](int64_t) {}).ok());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(RankWatch, ARankThatLeavesEndsOnlyWhatItHasNotFinished) {
  Ranks ranks(2);
  ranks.AllBegin(1);
  ranks[1].Finish(1);
  ranks[1].Begin(2, CollectiveKind::kAllGather, 100);
  ranks[1].Leave("no memory");
  EXPECT_EQ(ranks.EndOf(0), 2);
  EXPECT_EQ(ranks[0].Diagnose(2), "rank 1 has left the group after collective 1: no memory");
}

TEST(RankWatch, ARankThatIsDestroyedHasLeft) {
  Ranks ranks(3);
  ranks.AllBegin(1);
  ranks[1].Finish(1);
  ranks.Destroy(1);
  EXPECT_EQ(ranks.EndOf(0), 2);
  EXPECT_EQ(ranks[0].Diagnose(2), "rank 1 has left the group after collective 1");
}

TEST(RankWatch, ARankThatHasLeftIsNotToBlameForWhatItHasFinished) {
  Ranks ranks(3);
  ranks.AllBegin(1);
  ranks[1].Finish(1);
  ranks.Destroy(1);
  EXPECT_EQ(ranks.EndOf(0), 2);
  EXPECT_THAT(ranks[0].Diagnose(1), HasSubstr("all ranks answer"));
}

TEST(RankWatch, ARankThatLeavesBecauseOfAnotherNamesTheOther) {
  Ranks ranks(3);
  ranks.AllBegin(1);
  ranks[1].Leave("out of memory");
  EXPECT_EQ(ranks.EndOf(0), 1);
  ranks[0].Diagnose(1);
  ranks.Destroy(0);
  while (ranks.TimesToldTo(2) < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ranks[2].Diagnose(1), "rank 1 has left the group after collective 0: out of memory (found by rank 0)");
}

TEST(RankWatch, StrangersAreNotHeard) {
  Ranks ranks(2);
  auto stranger = RankWatch::Open("127.0.0.1");
  ASSERT_TRUE(stranger.ok());
  std::string forged = ranks[0].address();
  forged.back() = forged.back() == '1' ? '2' : '1';  // another token
  ASSERT_TRUE((*stranger)->Start(1, {forged, (*stranger)->address()}, {0, 1}, [](int64_t) {}).ok());
  (*stranger)->Leave("to disturb");
  ranks[1].Leave("in earnest");  // is sent later, so it arrives later
  ranks.EndOf(0);
  EXPECT_THAT(ranks[0].Diagnose(1), HasSubstr("in earnest"));
}

TEST(RankWatch, RefusesAddressesThatAreNone) {
  EXPECT_FALSE(RankWatch::Open("no.such.host.invalid").ok());
  auto watch = RankWatch::Open("127.0.0.1");
  ASSERT_TRUE(watch.ok());
  EXPECT_FALSE((*watch)->Start(0, {(*watch)->address(), "127.0.0.1"}, {0, 1}, [](int64_t) {}).ok());
}

}  // namespace
}  // namespace quartet
