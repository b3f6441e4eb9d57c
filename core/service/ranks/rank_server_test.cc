#include "core/service/ranks/rank_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/comm/agreed_error.h"
#include "core/config/run_config.h"
#include "core/service/wire/credentials.h"
#include "core/service/wire/health.grpc.pb.h"
#include "proto/rollout.grpc.pb.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using Inputs = std::vector<RankInput>;
using Strings = std::vector<std::string>;

// Records in which order each rank ran its calls.
struct Journal {
  std::atomic<int> slept = 0;  // calls that take their time have begun
  std::atomic<bool> released = false;
  std::mutex mutex;
  std::vector<std::vector<std::string>> by_rank;
  void Write(int rank, const std::string& entry) {
    std::lock_guard<std::mutex> lock(mutex);
    by_rank[rank].push_back(entry);
  }
  std::vector<std::string> Of(int rank) {
    std::lock_guard<std::mutex> lock(mutex);
    return by_rank[rank];
  }
};

class FakeService : public RankService {
 public:
  FakeService(const RankContext& context, RankGroup& group, Journal* journal, absl::Status load,
              const std::atomic<bool>* is_ready)
      : context_(context), load_(std::move(load)), is_ready_(is_ready) {
    const int rank = context.rank;
    group.Register("beside", RankGroup::Kind::kConcurrent, [](const RankInput&) { return RankOutput(); });
    group.RegisterPipe("echo", [rank](RankPipe& pipe) {
      for (std::string message; pipe.Read(&message) && message != "leave";) {
        pipe.Write(absl::StrCat(rank, ":", message));
      }
    });
    for (auto [name, kind] :
         {std::pair("echo", RankGroup::Kind::kCollective), std::pair("look", RankGroup::Kind::kLocal)}) {
      group.Register(name, kind, [rank, journal](const RankInput& in) -> absl::StatusOr<RankOutput> {
        journal->Write(rank, in.header);
        RankOutput out;
        out.summary = absl::StrCat(rank, ":", in.header);
        out.items = in.items;
        return out;
      });
      group.Register(absl::StrCat(name, "_fail"), kind, [rank](const RankInput& in) -> absl::StatusOr<RankOutput> {
        if (in.header == "all") return absl::FailedPreconditionError("not now");
        if (in.header == "all full") return absl::ResourceExhaustedError("no room");
        if (in.header == "agreed") {
          absl::Status error = absl::ResourceExhaustedError("no room, as all know");
          MarkAgreed(&error);
          return error;
        }
        if (in.header == "throw" && rank == 1) throw std::runtime_error("boom");
        if (in.header == "one" && rank == 1) return absl::FailedPreconditionError("not me");
        return RankOutput();
      });
      // The last rank takes its time.
      group.Register(absl::StrCat(name, "_sleep"), kind,
                     [rank, journal, last = rank == context.world_size - 1](const RankInput& in) {
                       if (last) {
                         ++journal->slept;
                         absl::SleepFor(absl::Milliseconds(1500));
                       }
                       journal->Write(rank, in.header);
                       return RankOutput();
                     });
    }
    // The last rank does not come to it.
    group.Register("echo_hang", RankGroup::Kind::kCollective,
                   [journal, last = rank == context.world_size - 1](const RankInput&) {
                     while (last && !journal->released) absl::SleepFor(absl::Milliseconds(5));
                     return RankOutput();
                   });
  }
  grpc::Service* grpc_service() override { return &service_; }
  absl::Status Load() override {
    loaded_store_ = context_.store->Set(absl::StrCat("seen/", context_.rank), "1").ok();
    return loaded_store_ ? load_ : absl::InternalError("no store");
  }
  bool IsReady() const override { return *is_ready_; }

 private:
  const RankContext& context_;
  const absl::Status load_;
  const std::atomic<bool>* const is_ready_;
  bool loaded_store_ = false;
  Rollout::Service service_;
};

// A group of ranks that are parts of this process.
class Group {
 public:
  explicit Group(int world_size, std::vector<absl::Status> loads = {}, int collective_timeout_seconds = 300)
      : groups(world_size), statuses(world_size) {
    journal.by_rank.resize(world_size);
    loads.resize(world_size);
    RunConfig config;
    config.mutable_services()->mutable_rollout()->set_collective_timeout_seconds(collective_timeout_seconds);
    EXPECT_TRUE(ResolveRunConfig(&config, "/").ok());
    for (int r = 0; r < world_size; ++r) {
      RankServerOptions options;
      options.service.service = "rollout";
      options.service.create = [this, r, load = loads[r]](
                                   const RunConfig&, const RankContext& context,
                                   RankGroup& group) -> absl::StatusOr<std::unique_ptr<RankService>> {
        groups[r] = &group;
        EXPECT_EQ(context.store->Set("x", "y").code(), absl::StatusCode::kFailedPrecondition);
        return std::make_unique<FakeService>(context, group, &journal, load, &is_ready);
      };
      options.config = config;
      options.place = {r, world_size, r, world_size};
      options.listen = "127.0.0.1:0";
      if (r > 0) options.leader = servers[0]->context().endpoint;
      options.on_broken = [this, r](const absl::Status& s) {
        std::lock_guard<std::mutex> lock(mutex);
        broken[r] = std::string(s.message());
      };
      options.on_leave = [this, r](const std::string& why) {
        std::lock_guard<std::mutex> lock(mutex);
        left[r] = why;
      };
      servers.push_back(RankServer::Create(std::move(options)).value());
    }
    std::vector<std::thread> threads;
    for (int r = 0; r < world_size; ++r) threads.emplace_back([this, r] { statuses[r] = servers[r]->Serve(); });
    for (std::thread& t : threads) t.join();
  }
  ~Group() {
    journal.released = true;
    for (auto& server : servers) server->Shutdown(absl::ZeroDuration(), "the test ends");
  }

  absl::StatusOr<std::vector<RankOutput>> Run(const std::string& method, const std::string& header,
                                              absl::Duration timeout = absl::Seconds(60)) {
    Inputs inputs(groups.size());
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r].header = header;
      inputs[r].items.assign(r, absl::StrCat("item of ", r));
    }
    return groups[0]->Run(method, std::move(inputs), Deadline::In(timeout));
  }

  // By rank: why it was called broken, or told that another leaves.
  std::map<int, std::string> Broken() {
    std::lock_guard<std::mutex> lock(mutex);
    return broken;
  }
  std::map<int, std::string> Left() {
    std::lock_guard<std::mutex> lock(mutex);
    return left;
  }
  // Until all ranks are broken.
  std::map<int, std::string> AllBroken() {
    for (int i = 0; i < 3000 && Broken().size() < groups.size(); ++i) absl::SleepFor(absl::Milliseconds(10));
    return Broken();
  }

  Journal journal;
  std::atomic<bool> is_ready = true;
  std::vector<RankGroup*> groups;
  std::vector<absl::Status> statuses;
  std::mutex mutex;
  std::map<int, std::string> broken, left;
  std::vector<std::unique_ptr<RankServer>> servers;
};

bool Contains(const absl::Status& status, const std::string& word) {
  return std::string(status.message()).find(word) != std::string::npos;
}

TEST(RankGroup, GivesEachRankItsPartAndJoinsTheAnswersInOrder) {
  for (int world_size : {1, 2, 3}) {
    Group group(world_size);
    for (const absl::Status& s : group.statuses) ASSERT_TRUE(s.ok()) << s;
    absl::StatusOr<std::vector<RankOutput>> outputs = group.Run("echo", "h");
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    ASSERT_EQ(outputs->size(), world_size);
    for (int r = 0; r < world_size; ++r) {
      EXPECT_EQ((*outputs)[r].summary, absl::StrCat(r, ":h"));
      EXPECT_EQ((*outputs)[r].items, std::vector<std::string>(r, absl::StrCat("item of ", r)));
    }
    EXPECT_EQ(group.groups[world_size - 1]->endpoints()[0], group.servers[0]->context().endpoint);
  }
}

TEST(RankGroup, RunsOverlappingCallsInOneOrderOnAllRanks) {
  Group group(3);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) failures += !group.Run(i % 3 == 0 ? "look" : "echo", absl::StrCat(t, "/", i)).ok();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(group.journal.Of(0).size(), 80);
  EXPECT_EQ(group.journal.Of(1), group.journal.Of(0));
  EXPECT_EQ(group.journal.Of(2), group.journal.Of(0));
}

TEST(RankGroup, NamesTheRankOfAnErrorAndGoesOnAfterALocalOne) {
  Group group(2);
  const absl::Status status = group.Run("look_fail", "one").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Contains(status, absl::StrCat("rank 1 (", group.servers[1]->context().endpoint, "): not me"))) << status;
  EXPECT_TRUE(Contains(group.Run("look_fail", "throw").status(), "boom"));
  EXPECT_TRUE(group.Run("echo", "h").ok());
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, GoesOnAfterARefusalByAllRanks) {
  Group group(2);
  EXPECT_EQ(group.Run("echo_fail", "all").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(group.Run("echo", "h").ok());
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, GoesOnAfterAnyErrorThatAllRanksAgreedOn) {
  Group group(3);
  EXPECT_EQ(group.Run("echo_fail", "agreed").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(group.Run("echo", "h").ok());
  EXPECT_TRUE(group.Broken().empty());
  // Every rank for itself may have run out of memory between two collectives.
  EXPECT_EQ(group.Run("echo_fail", "all full").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(group.Broken().count(0), 1u);
}

TEST(RankGroup, IsBrokenByAnErrorOfOneRankInACollective) {
  Group group(3);
  EXPECT_TRUE(Contains(group.Run("echo_fail", "one").status(), "not me"));
  EXPECT_EQ(group.Broken().count(0), 1u);
  EXPECT_EQ(group.Run("echo", "h").status().code(), absl::StatusCode::kUnavailable);
  for (const auto& [rank, why] : group.AllBroken()) EXPECT_THAT(why, HasSubstr("not me")) << rank;
  EXPECT_EQ(group.Broken().size(), 3u);
}

TEST(RankGroup, NamesTheRanksThatAreLateForACollectiveAndIsBroken) {
  Group group(3, {}, /*collective_timeout_seconds=*/1);
  const absl::Status status = group.Run("echo_hang", "", absl::Milliseconds(300)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Contains(status, "rank 2")) << status;
  EXPECT_FALSE(Contains(status, "rank 0")) << status;
  EXPECT_FALSE(Contains(status, "rank 1")) << status;
  EXPECT_EQ(group.AllBroken().size(), 3u);
}

// Else it would go on behind the back of whoever repeats the call.
TEST(RankGroup, WaitsBeyondTheDeadlineForWhatHasBegun) {
  for (const auto& [world_size, method] : {std::pair(1, "echo_sleep"), std::pair(1, "look_sleep"),
                                           std::pair(3, "look_sleep"), std::pair(3, "echo_sleep")}) {
    SCOPED_TRACE(absl::StrCat(world_size, method));
    Group group(world_size);
    const absl::Status status = group.Run(method, "late", absl::Milliseconds(300)).status();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(group.journal.Of(world_size - 1), Strings{"late"});
    EXPECT_TRUE(group.Run("echo", "h").ok());
    EXPECT_TRUE(group.Broken().empty());
  }
}

TEST(RankGroup, NeverBeginsWhatHasNotBegunByTheDeadline) {
  for (const int world_size : {1, 3}) {
    SCOPED_TRACE(world_size);
    Group group(world_size);
    std::thread before([&] { EXPECT_TRUE(group.Run("look_sleep", "first").ok()); });
    while (group.journal.slept == 0) absl::SleepFor(absl::Milliseconds(1));
    const absl::Status status = group.Run("look", "second", absl::Milliseconds(300)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status, absl::StrCat("rank ", world_size - 1))) << status;
    before.join();
    EXPECT_TRUE(group.Run("echo", "third").ok());
    EXPECT_EQ(group.journal.Of(world_size - 1), (Strings{"first", "third"}));
    EXPECT_TRUE(group.Broken().empty());
  }
}

// A client that asks for little time, such as for log-probabilities behind a long update, harms nobody but itself.
TEST(RankGroup, BeginsACollectiveOnAllRanksOrOnNone) {
  Group group(3);
  for (const int busy : {0, 1, 2}) {
    std::promise<void> has_begun, end;
    std::thread before([&] {
      const absl::Status status = group.groups[busy]->RunHere([&] {
        has_begun.set_value();
        end.get_future().wait();
        return absl::OkStatus();
      });
      EXPECT_TRUE(status.ok()) << status;
    });
    has_begun.get_future().wait();
    const absl::Status status = group.Run("echo", "late", absl::Milliseconds(300)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status, absl::StrCat("it has not begun in time on rank ", busy))) << status;
    end.set_value();
    before.join();
    EXPECT_TRUE(group.Run("echo", absl::StrCat(busy)).ok());
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(group.journal.Of(rank), (Strings{"0", "1", "2"})) << rank;
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, StaysInStepWhicheverCallsComeTooLate) {
  Group group(3);
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const absl::Status status =
            group.Run("echo", absl::StrCat(t, "/", i), absl::Milliseconds(1 + (7 * t + i) % 12)).status();
        done += status.ok();
        EXPECT_TRUE(status.ok() || absl::IsDeadlineExceeded(status)) << status;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(group.Run("echo", "last").ok());
  EXPECT_EQ(group.journal.Of(0).size(), done + 1);
  EXPECT_EQ(group.journal.Of(1), group.journal.Of(0));
  EXPECT_EQ(group.journal.Of(2), group.journal.Of(0));
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, RunsConcurrentCallsWhileTheExecutorIsBusy) {
  Group group(2);
  // Ends only after a concurrent call has: with one queue for both this would be a deadlock.
  const absl::Status status =
      group.groups[0]->RunHere([&] { return group.Run("beside", "", absl::Seconds(20)).status(); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(group.Run("echo", "h").ok());
}

TEST(RankGroup, PipesCarryMessagesBothWaysWhileCallsRun) {
  Group group(3);
  std::vector<std::shared_ptr<RankPipe>> pipes(3);
  for (int r = 1; r < 3; ++r) pipes[r] = group.groups[0]->OpenPipe(r, "echo").value();
  EXPECT_EQ(group.groups[0]->OpenPipe(0, "echo").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(group.groups[1]->OpenPipe(2, "echo").status().code(), absl::StatusCode::kFailedPrecondition);
  for (int i = 0; i < 50; ++i) {
    for (int r = 1; r < 3; ++r) EXPECT_TRUE(pipes[r]->Write(absl::StrCat(i)));
    EXPECT_TRUE(i % 10 != 0 || group.Run("echo", "h").ok());
    for (int r = 1; r < 3; ++r) {
      std::string message;
      EXPECT_TRUE(pipes[r]->Read(&message));
      EXPECT_EQ(message, absl::StrCat(r, ":", i));
    }
  }
  pipes[2]->Write("leave");
  std::string message;
  EXPECT_FALSE(pipes[2]->Read(&message));
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, PipesEndWithTheirGroup) {
  Group group(2);
  const std::shared_ptr<RankPipe> pipe = group.groups[0]->OpenPipe(1, "echo").value();
  std::thread reader([&] {
    std::string message;
    while (pipe->Read(&message)) {
    }
  });
  group.servers[0]->Shutdown(absl::ZeroDuration(), "the test ends");
  reader.join();
  EXPECT_TRUE(group.Broken().empty());
}

TEST(RankGroup, RefusesWhatDoesNotFitIntoAMessage) {
  Group group(2);
  Inputs inputs(2);
  inputs[1].items = {"small", std::string(5 << 20, 'x')};
  const absl::Status status = group.groups[0]->Run("echo", inputs, Deadline::Never()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(status, "item 1 for rank 1")) << status;
  inputs[1].items = {std::string(3 << 20, 'x'), std::string(3 << 20, 'y')};
  EXPECT_TRUE(group.groups[0]->Run("echo", inputs, Deadline::Never()).ok());
}

TEST(RankGroup, IsLedByRankZeroOnly) {
  Group group(2);
  EXPECT_EQ(group.groups[1]->Run("echo", Inputs(2), Deadline::Never()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(group.groups[0]->Run("nonsense", Inputs(2), Deadline::Never()).ok());
  EXPECT_FALSE(group.groups[0]->Run("echo", Inputs(1), Deadline::Never()).ok());
}

TEST(RankGroup, RunsLocalWorkOnTheExecutorThread) {
  Group group(1);
  std::thread::id first, second;
  ASSERT_TRUE(group.groups[0]->RunHere([&] { return first = std::this_thread::get_id(), absl::OkStatus(); }).ok());
  ASSERT_TRUE(group.groups[0]
                  ->RunHere([&] {
                    return group.groups[0]->RunHere(
                        [&] { return second = std::this_thread::get_id(), absl::OkStatus(); });
                  })
                  .ok());
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_EQ(group.groups[0]->RunHere([] { return absl::NotFoundError("x"); }).code(), absl::StatusCode::kNotFound);
}

TEST(RankServer, FailsOnAllRanksWhereOneCannotLoad) {
  Group group(3, {absl::OkStatus(), absl::NotFoundError("no such model"), absl::OkStatus()});
  for (const absl::Status& status : group.statuses) {
    EXPECT_TRUE(Contains(status, absl::StrCat("rank 1 (", group.servers[1]->context().endpoint, ")"))) << status;
    EXPECT_TRUE(Contains(status, "no such model")) << status;
  }
}

using Health = grpc::health::v1::HealthCheckResponse;

bool IsServing(const RankServer& server) {
  const auto stub = grpc::health::v1::Health::NewStub(
      grpc::CreateChannel(server.context().endpoint, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  Health answer;
  EXPECT_TRUE(stub->Check(&context, grpc::health::v1::HealthCheckRequest(), &answer).ok());
  return answer.status() == Health::SERVING;
}

TEST(RankServer, ReportsServingWhileItIsReady) {
  Group group(2);
  for (const auto& server : group.servers) {
    const auto stub = grpc::health::v1::Health::NewStub(
        grpc::CreateChannel(server->context().endpoint, grpc::InsecureChannelCredentials()));
    const auto check = [&stub](const std::string& name, Health* answer) {
      grpc::ClientContext context;
      grpc::health::v1::HealthCheckRequest request;
      request.set_service(name);
      return stub->Check(&context, request, answer);
    };
    grpc::ClientContext context;
    const auto watch = stub->Watch(&context, grpc::health::v1::HealthCheckRequest());
    Health watched;
    for (const bool ready : {true, false, true}) {
      group.is_ready = ready;
      ASSERT_TRUE(watch->Read(&watched));
      EXPECT_EQ(watched.status(), ready ? Health::SERVING : Health::NOT_SERVING);
      for (const std::string name : {"", "quartet.Rollout"}) {
        Health answer;
        ASSERT_TRUE(check(name, &answer).ok());
        EXPECT_EQ(answer.status(), ready ? Health::SERVING : Health::NOT_SERVING);
      }
    }
    Health none;
    EXPECT_EQ(check("quartet.Scorer", &none).error_code(), grpc::StatusCode::NOT_FOUND);
    context.TryCancel();
  }
}

TEST(RankServer, OthersHearOfAnOrderlyEndAndTakeItForNoFailure) {
  for (const int first : {0, 2}) {
    Group group(3);
    group.servers[first]->Shutdown(absl::Seconds(20), "SIGTERM");
    const std::string why = absl::StrCat("SIGTERM (of rank ", first, ")");
    EXPECT_EQ(group.Left()[first == 0 ? 1 : 0], why);
    // Of another follower's end a follower hears from the leader.
    group.servers[0]->Shutdown(absl::Seconds(20), group.Left()[0]);
    EXPECT_EQ(group.Left()[1], why);
    EXPECT_TRUE(group.Broken().empty());
  }
}

TEST(RankServer, IsNotServingOnceItsRanksCannotWorkTogether) {
  Group group(2);
  group.groups[1]->Break(absl::InternalError("the device is lost"));
  for (const auto& [rank, why] : group.AllBroken()) EXPECT_THAT(why, HasSubstr("the device is lost")) << rank;
  EXPECT_THAT(group.Broken()[0], HasSubstr(absl::StrCat("rank 1 (", group.servers[1]->context().endpoint, ")")));
  for (const auto& server : group.servers) EXPECT_FALSE(IsServing(*server));
}

TEST(RankServer, RefusesAPortInUse) {
  Group group(1);
  RankServerOptions options;
  options.service.service = "rollout";
  options.service.create = [](const RunConfig&, const RankContext&,
                              RankGroup&) -> absl::StatusOr<std::unique_ptr<RankService>> {
    return absl::InternalError("not reached");
  };
  ASSERT_TRUE(ResolveRunConfig(&options.config, "/").ok());
  options.listen = group.servers[0]->context().endpoint;
  const absl::Status status = RankServer::Create(std::move(options)).status();
  EXPECT_TRUE(Contains(status, group.servers[0]->context().endpoint)) << status;
  EXPECT_TRUE(Contains(status, "in use")) << status;
}

}  // namespace
}  // namespace quartet
