#include "core/service/ranks/rank_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/config/run_config.h"
#include "core/http/testing/http_client.h"
#include "core/service/ranks/testing/rank_servers.h"
#include "core/service/rpc/health.grpc.pb.h"
#include "proto/trace.grpc.pb.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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

TEST(RankServer, TheLeaderKnowsForHowLongNobodyHasWatchedIt) {
  Group group(2);
  const auto until_unwatched = [&] {
    while (group.servers[0]->unwatched() == absl::ZeroDuration()) absl::SleepFor(absl::Milliseconds(1));
  };
  until_unwatched();
  const auto stub = grpc::health::v1::Health::NewStub(
      grpc::CreateChannel(group.servers[0]->context().endpoint, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto watch = stub->Watch(&context, grpc::health::v1::HealthCheckRequest());
  Health watched;
  ASSERT_TRUE(watch->Read(&watched));
  EXPECT_TRUE(IsServing(*group.servers[0])) << "who checks does not watch";
  EXPECT_EQ(group.servers[0]->unwatched(), absl::ZeroDuration());
  context.TryCancel();
  until_unwatched();
  EXPECT_EQ(group.servers[1]->unwatched(), absl::ZeroDuration()) << "no orchestrator asks it";
}

TEST(RankServer, TheLeaderTellsPrometheusOfItsCalls) {
  Group group(2);
  EXPECT_EQ(group.servers[1]->metrics_url(), "");
  const std::string url = group.servers[0]->metrics_url();
  EXPECT_THAT(url, AllOf(StartsWith("http://127.0.0.1:"), EndsWith("/metrics")));
  EXPECT_TRUE(IsServing(*group.servers[0]));
  const auto stub =
      Rollout::NewStub(grpc::CreateChannel(group.servers[0]->context().endpoint, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  PauseReply reply;
  EXPECT_EQ(stub->Pause(&context, PauseRequest(), &reply).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  const HttpAnswer answer = HttpAsk(std::stoi(url.substr(url.rfind(':') + 1)), "GET", "/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"quartet_service_serving{service=\"rollout\"} 1\n", "quartet_service_ranks{service=\"rollout\"} 2\n",
        "# TYPE quartet_grpc_server_handling_seconds histogram\n",
        "quartet_grpc_server_handling_seconds_count{code=\"UNIMPLEMENTED\",method=\"quartet.Rollout/Pause\"} 1\n",
        "quartet_grpc_server_handling_seconds_count{code=\"OK\",method=\"grpc.health.v1.Health/Check\"} 1\n",
        "quartet_grpc_server_in_flight{method=\"quartet.Rollout/Pause\"} 0\n",
        "# TYPE process_resident_memory_bytes gauge\n"}) {
    EXPECT_THAT(answer.body, HasSubstr(line));
  }
  group.is_ready = false;
  EXPECT_THAT(HttpAsk(std::stoi(url.substr(url.rfind(':') + 1)), "GET", "/metrics").body,
              HasSubstr("quartet_service_serving{service=\"rollout\"} 0\n"));
}

TEST(RankServer, TracesWhatItsRanksDo) {
  Group group(1);
  const auto stub =
      Trace::NewStub(grpc::CreateChannel(group.servers[0]->context().endpoint, grpc::InsecureChannelCredentials()));
  const auto take = [&](std::string* events) {
    grpc::ClientContext context;
    const auto stream = stub->Take(&context, TakeTraceRequest());
    for (TraceChunk chunk; stream->Read(&chunk);) *events += chunk.events();
    return stream->Finish();
  };
  std::string events;
  EXPECT_EQ(take(&events).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(events, "");
  grpc::ClientContext context;
  StartTraceReply reply;
  ASSERT_TRUE(stub->Start(&context, StartTraceRequest(), &reply).ok());
  group.groups[0]->Run("echo", {RankInput()}, Deadline::In(absl::Seconds(60))).IgnoreError();
  ASSERT_TRUE(take(&events).ok());
  EXPECT_THAT(events, HasSubstr("\"name\":\"echo\"}"));
  EXPECT_EQ(take(&events).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(RankServer, OthersHearOfAnOrderlyEndAndTakeItForNoFailure) {
  for (const int first : {0, 2}) {
    Group group(3);
    group.servers[first]->Shutdown(absl::Seconds(20), "SIGTERM");
    const std::string why = absl::StrCat("SIGTERM (of rank ", first, ")");
    const auto left = [&](int rank) {
      while (group.Left().count(rank) == 0) absl::SleepFor(absl::Milliseconds(1));
      return group.Left()[rank];
    };
    EXPECT_EQ(left(first == 0 ? 1 : 0), why);
    // Of another follower's end a follower hears from the leader.
    if (first != 0) group.servers[0]->Shutdown(absl::Seconds(20), why);
    EXPECT_EQ(left(1), why);
    EXPECT_TRUE(group.Broken().empty());
  }
}

// Its handler waits for the client, whom it does not hear of the end otherwise.
TEST(RankServer, ACallThatIsStillBeingSentIsToldWhyTheServiceEnds) {
  const std::string why = "rank 1 (pid 7) ended: 100%25 lost,\n\xC3\xA9";
  Group group(2);
  const auto stub =
      Rollout::NewStub(grpc::CreateChannel(group.servers[0]->context().endpoint, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context);
  ASSERT_TRUE(stream->Write(GenerateRequest()));
  while (group.journal.read == 0) absl::SleepFor(absl::Milliseconds(1));
  group.servers[0]->Shutdown(absl::ZeroDuration(), why);
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "the rollout stops: " + why);
}

TEST(RankServer, IsNotServingOnceItsRanksCannotWorkTogether) {
  Group group(2);
  group.groups[1]->Break(absl::InternalError("the device is lost"));
  for (const auto& [rank, why] : group.AllBroken()) EXPECT_THAT(why, HasSubstr("the device is lost")) << rank;
  EXPECT_THAT(group.Broken()[0], HasSubstr(absl::StrCat("rank 1 (", group.servers[1]->context().endpoint, ")")));
  for (const auto& server : group.servers) EXPECT_FALSE(IsServing(*server));
}

// A launcher knows more of a rank that has gone without a word, and nothing of why one says that it cannot go on.
TEST(RankServer, WaitsForALauncherOnlyWhereNoRankHasSaidWhy) {
  for (const int first : {0, 1}) {
    Group group(3, 3, {}, 300, [](RankServerOptions* options) {
      options->leader_file = testing::TempDir() + "/leader";
      options->launcher_precedence = absl::Hours(1);
    });
    group.Serve();
    group.groups[first]->Break(absl::InternalError("the device is lost"));
    for (const auto& [rank, why] : group.AllBroken()) EXPECT_THAT(why, HasSubstr("the device is lost")) << rank;
    EXPECT_EQ(group.Broken().size(), 3u);
  }
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
