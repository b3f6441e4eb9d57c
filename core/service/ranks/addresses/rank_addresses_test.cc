#include "core/service/ranks/addresses/rank_addresses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/network/address.h"
#include "core/service/ranks/addresses/host_address.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RankEnvironment Place(int rank, int world_size) { return {rank, world_size, rank, world_size}; }

// Of a rank of two that a launcher on this host has started.
RankAddresses Launched(int rank, const std::string& listen) {
  const absl::StatusOr<RankAddresses> found = FindRankAddresses("scorer", listen, Place(rank, 2), true, "");
  EXPECT_TRUE(found.ok()) << found.status();
  return found.value_or(RankAddresses());
}

absl::StatusOr<RankAddresses> Alone(int rank, const std::string& listen, const std::string& master) {
  return FindRankAddresses("scorer", listen, Place(rank, 2), false, master);
}

TEST(RankAddresses, OnlyTheLeaderOfALauncherTakesThePort) {
  EXPECT_EQ(Launched(0, "127.0.0.1:50051").listen, "127.0.0.1:50051");
  EXPECT_EQ(Launched(1, "127.0.0.1:50051").listen, "127.0.0.1:0");
  EXPECT_EQ(Launched(1, "127.0.0.1:50051").leader, "");
  EXPECT_EQ(Launched(1, "127.0.0.1:50051").advertised_host, "");
}

TEST(RankAddresses, NoRankIsFoundUnderAWildcard) {
  const absl::StatusOr<std::string> own = OwnReachableHost("0.0.0.0");
  if (!own.ok()) GTEST_SKIP() << own.status();
  EXPECT_FALSE(IsWildcard(*own) || IsLoopback(*own)) << *own;
  for (const int rank : {0, 1}) {
    EXPECT_EQ(Launched(rank, "0.0.0.0:50051").advertised_host, *own);
    EXPECT_NE(Launched(rank, "[::]:50051").advertised_host, "");
  }
  EXPECT_EQ(Launched(0, "0.0.0.0:50051").listen, "0.0.0.0:50051");
  EXPECT_EQ(Launched(1, "0.0.0.0:50051").listen, "0.0.0.0:0");
}

TEST(RankAddresses, RanksOfOtherHostsMeetAtTheLeader) {
  const absl::StatusOr<RankAddresses> leader = Alone(0, "0.0.0.0:50051", "127.0.0.1");
  ASSERT_TRUE(leader.ok()) << leader.status();
  EXPECT_EQ(leader->advertised_host, "127.0.0.1");
  EXPECT_EQ(leader->leader, "");
  const absl::StatusOr<RankAddresses> other = Alone(1, "0.0.0.0:50051", "127.0.0.1");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->leader, "127.0.0.1:50051");
  EXPECT_EQ(other->listen, "127.0.0.1:0");  // from where the leader is reached
  EXPECT_EQ(other->advertised_host, "");
}

// Of the leader of two hosts.
absl::StatusOr<RankAddresses> Apart(const std::string& master) {
  return FindRankAddresses("scorer", "0.0.0.0:5", {.world_size = 2, .local_world_size = 1}, false, master);
}

TEST(RankAddresses, TheLeaderIsOnlyFoundUnderAnAddressOfItsHostThatOthersReach) {
  for (const std::string unreachable : {"127.0.0.1", "localhost", "192.0.2.7", "nowhere.invalid"}) {
    const absl::StatusOr<RankAddresses> found = Apart(unreachable);
    EXPECT_THAT(std::string(found.status().message()),
                AllOf(HasSubstr("services.scorer.listen is 0.0.0.0:5"), HasSubstr("MASTER_ADDR"),
                      HasSubstr("'" + unreachable + "'")));
  }
  EXPECT_THAT(std::string(Apart("localhost").status().message()), HasSubstr("stands for "));
  const absl::StatusOr<std::string> own = OwnReachableHost("0.0.0.0");
  if (!own.ok()) GTEST_SKIP() << own.status();
  const absl::StatusOr<RankAddresses> found = Apart(*own);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->advertised_host, *own);
}

TEST(RankAddresses, TheLeaderListensUnderNoNameThatOthersTakeForTheirs) {
  const auto listens = [](const std::string& listen) {
    return FindRankAddresses("scorer", listen, {.world_size = 2, .local_world_size = 1}, false, "").status();
  };
  EXPECT_THAT(std::string(listens("192.0.2.7:5").message()),
              AllOf(HasSubstr("services.scorer.listen is 192.0.2.7:5"), HasSubstr("no address of this host")));
  EXPECT_TRUE(listens("127.0.0.1:5").ok()) << "hosts that share it, such as containers of one pod";
  const absl::StatusOr<std::string> own = OwnReachableHost("0.0.0.0");
  if (own.ok()) {
    EXPECT_TRUE(listens(*own + ":5").ok()) << *own;
  }
}

TEST(RankAddresses, SaysWhatToSetWhereNobodyCouldBeFound) {
  EXPECT_THAT(std::string(Alone(1, "127.0.0.1:0", "").status().message()),
              AllOf(HasSubstr("services.scorer.listen is 127.0.0.1:0"), HasSubstr("port")));
  EXPECT_THAT(std::string(Alone(0, "0.0.0.0:5", "").status().message()),
              AllOf(HasSubstr("0.0.0.0:5"), HasSubstr("MASTER_ADDR")));
  EXPECT_THAT(std::string(Alone(1, "nowhere.invalid:5", "").status().message()), HasSubstr("nowhere.invalid"));
}

}  // namespace
}  // namespace quartet
