// One rank of the test service: Rollout with no call but GetInfo, which asks every rank.
//
// TOY_LOAD_GATE=FILE: the last rank loads only once the file exists. TOY_BAD_RANK=R: rank R cannot load.
// TOY_CALL=stuck: GetInfo does not end; =fail: it fails on the last rank, in a collective; =alone: it asks no rank and
// ends when the server shuts down. Where it does not end, rank 0 logs "at work". TOY_HEARTBEAT=D:
// RankMainOptions::heartbeat.
#include "core/service/ranks/rank_main.h"

#include <stdlib.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/environment.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/status_conversion.h"
#include "proto/rollout.grpc.pb.h"

namespace quartet {
namespace {

class ToyService final : public RankService, public Rollout::Service {
 public:
  ToyService(const RankContext& context, RankGroup& group) : context_(context), group_(group) {
    group.Register("info", RankGroup::Kind::kCollective, [this](const RankInput&) { return OwnInfo(); });
  }

  grpc::Service* grpc_service() override { return static_cast<Rollout::Service*>(this); }

  absl::Status Load() override {
    if (Environment("TOY_BAD_RANK") == absl::StrCat(context_.rank)) return absl::NotFoundError("no toy here");
    const std::string gate = Environment("TOY_LOAD_GATE");
    while (IsLast() && !gate.empty() && !ReadFile(gate).ok()) absl::SleepFor(absl::Milliseconds(10));
    return absl::OkStatus();
  }

  void EndCalls(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    end_ = status;
    changed_.notify_all();
  }

  grpc::Status GetInfo(grpc::ServerContext* context, const GetInfoRequest*, ServiceInfo* info) override {
    if (Environment("TOY_CALL") == "alone") {
      QUARTET_LOG(kInfo) << "at work";
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !end_.ok(); });
      return ToGrpc(end_);
    }
    auto outputs = group_.Run("info", std::vector<RankInput>(context_.world_size), DeadlineOf(*context));
    if (!outputs.ok()) return ToGrpc(outputs.status());
    for (const RankOutput& output : *outputs) info->add_ranks()->ParseFromString(output.summary);
    return grpc::Status::OK;
  }

 private:
  bool IsLast() const { return context_.rank == context_.world_size - 1; }

  absl::StatusOr<RankOutput> OwnInfo() const {
    const std::string what = Environment("TOY_CALL");
    if (what == "stuck" && context_.rank == 0) QUARTET_LOG(kInfo) << "at work";
    while (what == "stuck") absl::SleepFor(absl::Seconds(1));
    if (what == "fail" && IsLast()) return absl::InternalError("the toy broke");
    RankInfo info;
    info.set_rank(context_.rank);
    info.set_endpoint(context_.endpoint);
    info.set_pid(getpid());
    RankOutput output;
    output.summary = info.SerializeAsString();
    return output;
  }

  const RankContext& context_;
  RankGroup& group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status end_;  // guarded by mutex_
};

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  using namespace quartet;
  absl::Duration heartbeat = absl::Seconds(1);
  absl::ParseDuration(Environment("TOY_HEARTBEAT"), &heartbeat);
  RankMain(argc, argv,
           {.service = "rollout",
            .create = [](const RunConfig&, const RankContext& context,
                         RankGroup& group) -> absl::StatusOr<std::unique_ptr<RankService>> {
              return std::make_unique<ToyService>(context, group);
            },
            .create_check = {},
            .heartbeat = heartbeat});
}
