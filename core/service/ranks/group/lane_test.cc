// The lane as a rank sees it that speaks the protocol by hand (proto/rank.proto).
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/service/ranks/testing/rank_servers.h"
#include "core/version/version.h"
#include "proto/rank.grpc.pb.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

// The leader of two ranks, whose other one is the test.
class LaneTest : public ::testing::Test {
 protected:
  explicit LaneTest(absl::Duration heartbeat = absl::Seconds(1))
      : leader_(2, /*listening=*/1, {}, 300,
                [heartbeat](RankServerOptions* options) { options->service.heartbeat = heartbeat; }) {}
  ~LaneTest() override {
    if (serving_.joinable()) serving_.join();
  }

  // Opens a lane and says who comes.
  struct Lane {
    explicit Lane(const std::string& address)
        : stub(Rank::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
          stream(stub->Lane(&context)) {}
    Lane(const std::string& address, const LaneJoin& join) : Lane(address) {
      RankMessage message;
      *message.mutable_join() = join;
      stream->Write(message);
    }
    ~Lane() { context.TryCancel(); }
    // The next but for being asked whether this rank is there, which it answers.
    RankMessage Read() {
      RankMessage message;
      while (stream->Read(&message)) {
        if (!message.ask()) return message;
        message.set_here(true);
        stream->Write(message);
      }
      ADD_FAILURE() << "the lane has ended";
      return {};
    }
    // Of a lane that the leader ends.
    absl::Status End() {
      RankMessage message;
      while (stream->Read(&message)) {
      }
      const grpc::Status status = stream->Finish();
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    }
    grpc::ClientContext context;
    const std::unique_ptr<Rank::Stub> stub;
    const std::unique_ptr<grpc::ClientReaderWriter<RankMessage, RankMessage>> stream;
  };
  // Of a rank that is started as the leader is.
  LaneJoin JoinOf(int rank) const {
    const RankContext& leader = leader_.servers[0]->context();
    LaneJoin join;
    join.set_rank(rank);
    join.set_endpoint("host:1");
    join.set_service(leader.service);
    join.set_world_size(leader.world_size);
    join.set_version(VersionText());
    join.mutable_configuration()->insert(leader.configuration.begin(), leader.configuration.end());
    return join;
  }
  std::string address() const { return leader_.servers[0]->context().endpoint; }

  // As a rank that has loaded, beside a leader that serves.
  std::unique_ptr<Lane> Join() {
    auto lane = std::make_unique<Lane>(address(), JoinOf(1));
    serving_ = std::thread([this] { leader_.statuses[0] = leader_.servers[0]->Serve(); });
    EXPECT_THAT(lane->Read().welcome().endpoints(), ::testing::ElementsAre(address(), "host:1"));
    RankMessage loaded;
    loaded.set_loaded(true);
    lane->stream->Write(loaded);
    EXPECT_TRUE(lane->Read().loaded());
    serving_.join();
    EXPECT_TRUE(leader_.statuses[0].ok()) << leader_.statuses[0];
    return lane;
  }

  Group leader_;
  std::thread serving_;
};

TEST_F(LaneTest, CarriesACallInOneMessageEachWay) {
  const std::unique_ptr<Lane> lane = Join();
  std::thread call([&] { EXPECT_EQ(leader_.Run("look", "h").value()[1].summary, "by hand"); });
  const LanePart work = lane->Read().work();
  EXPECT_EQ(work.method(), "look");
  EXPECT_EQ(work.head(), "h");
  EXPECT_THAT(work.items(), ::testing::ElementsAre("item of 1"));
  EXPECT_TRUE(work.last());
  EXPECT_FALSE(work.concurrent());
  RankMessage answer;
  answer.mutable_answer()->set_call(work.call());
  answer.mutable_answer()->set_head("by hand");
  answer.mutable_answer()->set_last(true);
  lane->stream->Write(answer);
  call.join();
}

TEST_F(LaneTest, ARankWhoseLaneEndsWithoutAWordIsGone) {
  std::unique_ptr<Lane> lane = Join();
  std::thread call(
      [&] { EXPECT_EQ(leader_.Run("look", "h").status(), absl::UnavailableError("rank 1 (host:1): is gone")); });
  EXPECT_TRUE(lane->Read().has_work());
  lane = nullptr;
  call.join();
  while (leader_.Broken().empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(leader_.Broken()[0], "rank 1 (host:1) is gone");
  EXPECT_EQ(leader_.Run("look", "h").status(), absl::UnavailableError("look: rank 1 (host:1) is gone"));
}

TEST_F(LaneTest, OneThatSaysItsLeaveIsNot) {
  const std::unique_ptr<Lane> lane = Join();
  RankMessage message;
  message.mutable_leaves()->set_why("SIGTERM");
  lane->stream->Write(message);
  lane->stream->WritesDone();
  EXPECT_TRUE(lane->End().ok());
  while (leader_.Left().empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(leader_.Left()[0], "SIGTERM (of rank 1)");
  EXPECT_TRUE(leader_.Broken().empty());
}

// Nothing of a call has gone to any rank then, and the group is well once the rank answers.
TEST_F(LaneTest, ARankThatDoesNotAnswerIsNamedBeforeACallBegins) {
  const std::unique_ptr<Lane> lane = Join();
  absl::SleepFor(absl::Milliseconds(200));  // in 100 ms it may say nothing
  EXPECT_EQ(leader_.Run("echo", "lost", absl::Milliseconds(300)).status(),
            absl::DeadlineExceededError("echo: not all ranks were ready in time: rank 1 (host:1)"));
  EXPECT_TRUE(leader_.journal.Of(0).empty());
  EXPECT_TRUE(leader_.Broken().empty());
}

class QuickLaneTest : public LaneTest {
 protected:
  QuickLaneTest() : LaneTest(absl::Milliseconds(100)) {}
};

TEST_F(QuickLaneTest, OneThatIsSilentIsGivenUpAndToldSo) {
  const std::unique_ptr<Lane> lane = Join();
  std::thread call([&] {
    const absl::Status status = leader_.Run("look", "h").status();
    EXPECT_TRUE(Contains(status, "rank 1 (host:1)")) << status;
    EXPECT_TRUE(Contains(status, "has not answered for 2.5s")) << status;
  });
  EXPECT_TRUE(lane->Read().has_work());
  const std::string why = "rank 1 (host:1) has not answered for 2.5s: it is stopped, or its host is gone";
  EXPECT_EQ(lane->End(), absl::DeadlineExceededError(why));
  call.join();
  while (leader_.Broken().empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(leader_.Broken()[0], why);
}

TEST_F(QuickLaneTest, OneThatAnswersIsThereHoweverLittleItSays) {
  const std::unique_ptr<Lane> lane = Join();
  for (int i = 0; i < 30; ++i) {
    RankMessage message;
    ASSERT_TRUE(lane->stream->Read(&message));
    EXPECT_TRUE(message.ask());
    message.set_here(true);
    ASSERT_TRUE(lane->stream->Write(message));
  }
  EXPECT_TRUE(leader_.Broken().empty());
}

TEST_F(QuickLaneTest, EndsWhereNobodySaysWhoComes) {
  const std::unique_ptr<Lane> lane = Join();
  EXPECT_EQ(Lane(address()).End(), absl::DeadlineExceededError("no `join` came within 1s"));
  EXPECT_TRUE(leader_.Broken().empty());
}

// A leader that speaks the protocol by hand, of a follower that is as the test says.
class ByHand : public Rank::Service {
 public:
  grpc::Status Lane(grpc::ServerContext* context, grpc::ServerReaderWriter<RankMessage, RankMessage>* stream) override {
    RankMessage message;
    EXPECT_TRUE(stream->Read(&message));
    message.mutable_welcome()->add_endpoints("host:1");
    message.mutable_welcome()->add_endpoints("host:2");
    stream->Write(message);
    if (!end.ok()) return end;
    while (deaf && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    while (stream->Read(&message)) said.push_back(message);
    return grpc::Status::OK;
  }
  grpc::Status end;               // of the lane, unless it is OK
  bool deaf = false;              // it reads no more, and the follower has much to say
  std::vector<RankMessage> said;  // by the follower, once it has ended the lane
};

// Why the follower takes the ranks to be broken.
std::string BrokenBeside(ByHand* leader) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(leader);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  RankContext context;
  context.rank = 1;
  context.world_size = 2;
  context.endpoint = "host:2";
  std::promise<std::string> broken;
  std::unique_ptr<RankGroup> follower;
  follower = RankGroup::Create(context,
                               {.on_broken =
                                    [&](const absl::Status& status) {
                                      follower->Announce(std::string(status.message()), /*broken=*/true);
                                      broken.set_value(std::string(status.message()));
                                    },
                                .on_lost = [](const absl::Status& status) { ADD_FAILURE() << status; },
                                .on_leave = {}},
                               absl::Milliseconds(20));
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  follower->Start(channel, absl::Seconds(30)).IgnoreError();
  std::thread speaker([&] {
    for (int i = 0; leader->deaf && i < 32; ++i) follower->SendEvent(0, std::string(1 << 20, 'x'));
  });
  const std::string why = broken.get_future().get();
  follower->CloseLanes(Deadline::In(leader->deaf ? absl::ZeroDuration() : absl::Seconds(30)));
  speaker.join();
  return why;
}

TEST(Follower, GivesUpALeaderThatIsSilentAndTellsIt) {
  ByHand leader;
  const std::string why = "rank 0 (host:1) has not answered for 500ms: it is stopped, or its host is gone";
  EXPECT_EQ(BrokenBeside(&leader), why);
  ASSERT_FALSE(leader.said.empty());
  EXPECT_EQ(leader.said.back().leaves().why(), why);
}

TEST(Follower, GivesUpALeaderThatIsSilentWhileItHasMuchToTellIt) {
  ByHand leader;
  leader.deaf = true;
  EXPECT_EQ(BrokenBeside(&leader), "rank 0 (host:1) has not answered for 500ms: it is stopped, or its host is gone");
}

// As one that was stopped for a time hears it: the leader is there.
TEST(Follower, ThatWasGivenUpSaysSo) {
  ByHand leader;
  leader.end = grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "rank 1 (host:2) has not answered for 25s");
  EXPECT_EQ(BrokenBeside(&leader), "given up by rank 0: rank 1 (host:2) has not answered for 25s");
}

TEST_F(LaneTest, JoinsEachRankOnce) {
  const Lane lane(address(), JoinOf(1));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(Lane(address(), JoinOf(rank)).End(),
              absl::InvalidArgumentError(
                  absl::StrCat("join: rank is ", rank, ", at \"host:1\"; allowed: 1 to 1, at its address")));
  }
  Lane second(address(), JoinOf(1));
  EXPECT_EQ(second.End(), absl::AlreadyExistsError("rank 1 (host:1) has joined already"));
}

TEST_F(LaneTest, RefusesARankThatWasStartedOtherwiseAndSaysWhatDiffers) {
  const auto refused = [&](const auto& change) {
    LaneJoin join = JoinOf(1);
    change(join);
    const absl::Status end = Lane(address(), join).End();
    EXPECT_TRUE(absl::IsFailedPrecondition(end)) << end;
    return std::string(end.message());
  };
  const std::string begin = "rank 1 (host:1) was started with another configuration than rank 0: ";
  EXPECT_EQ(refused([](LaneJoin& join) { join.set_service("scorer"); }),
            begin + "the service scorer instead of rollout");
  EXPECT_EQ(refused([](LaneJoin& join) { join.set_world_size(3); }), begin + "the number of ranks 3 instead of 2");
  EXPECT_THAT(refused([](LaneJoin& join) { join.set_version("another"); }),
              HasSubstr("the version another instead of"));
  EXPECT_EQ(refused([](LaneJoin& join) { (*join.mutable_configuration())["rollout.dtype"] = "\"fp64\""; }),
            begin + "rollout.dtype \"fp64\" instead of \"bf16\"");
  EXPECT_EQ(refused([](LaneJoin& join) { join.mutable_configuration()->erase("rollout.dtype"); }),
            begin + "rollout.dtype unset instead of \"bf16\"");
}

}  // namespace
}  // namespace quartet
