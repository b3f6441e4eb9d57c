#include "core/service/ranks/group/leader_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/service/ranks/testing/rank_servers.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

constexpr char kLoads[] = "the toy is still loading its model";

TEST(LeaderStatus, AnswersOnceTheLeaderHasLoadedAndOnOtherRanksNamesTheLeader) {
  Group group(2);
  for (const absl::Status& s : group.statuses) ASSERT_TRUE(s.ok()) << s;
  LeaderStatus leader(*group.groups[0], "toy", kLoads, {}), other(*group.groups[1], "toy", kLoads, {});
  EXPECT_EQ(leader.CheckReady("Draw"), leader.StillLoading());
  EXPECT_EQ(leader.StillLoading().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(leader.StillLoading().message(), HasSubstr(kLoads));
  leader.SetLoaded();
  EXPECT_TRUE(leader.CheckReady("Draw").ok());
  other.SetLoaded();
  EXPECT_EQ(other.CheckReady("Draw"),
            absl::FailedPreconditionError(absl::StrCat("Draw is answered by the leader, rank 0 at ",
                                                       group.groups[0]->endpoints()[0], "; this is rank 1")));
}

TEST(LeaderStatus, DescribesTheServiceAndItsRanksInOrder) {
  Group group(1);
  for (const absl::Status& s : group.statuses) ASSERT_TRUE(s.ok()) << s;
  const LeaderStatus leader(*group.groups[0], "toy", kLoads, {{"toy.size", "3"}});
  std::vector<RankInfo> ranks(2);
  ranks[0].set_rank(0);
  ranks[1].set_rank(1);
  const ServiceInfo info = leader.Describe(ranks, 512, {{"model", {100, 90}}, {"reference", {101, 90}}});
  EXPECT_EQ(info.service(), "toy");
  EXPECT_GT(info.protocol_version(), 0);
  EXPECT_EQ(info.max_model_len(), 512);
  EXPECT_EQ(info.vocab_size().at("reference"), 101);
  EXPECT_EQ(info.tokenizer_vocab_size().at("reference"), 90);
  EXPECT_EQ(info.configuration().at("toy.size"), "3");
  ASSERT_EQ(info.ranks_size(), 2);
  EXPECT_EQ(info.ranks(1).rank(), 1);
}

}  // namespace
}  // namespace quartet
