// The process scaffolding of a rank: flags, rendezvous, gRPC server, health, shutdown.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/time/deadline.h"
#include "core/prometheus/families.h"
#include "core/rank/rank_context.h"
#include "core/service/ranks/group/rank_group.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What a service gives RankMain.
class RankService {
 public:
  virtual ~RankService() = default;
  // The public gRPC service; on ranks that are not the leader most of its calls answer FAILED_PRECONDITION.
  virtual grpc::Service* grpc_service() = 0;
  // Loads models and enters the first collectives. Runs on the executor thread of every rank after all are connected.
  // The rank reports SERVING only after this.
  virtual absl::Status Load() = 0;
  // The server shuts down: calls that are still there, and do not wait for the group, are to end with `status` soon.
  // From any thread.
  virtual void EndCalls(const absl::Status& /*status*/) {}
  // The server shuts down, and no call is left: what the ranks do together beside calls is to end, while all of them
  // are still there, or by then. Before the lanes close.
  virtual void EndWork(const Deadline& /*until*/) {}
  // After Load, from any thread: whether the rank can do its work. While it cannot, it reports NOT_SERVING.
  virtual bool IsReady() const { return true; }
  // From any thread, at any time: adds the service's own figures for Prometheus. It waits for no work of the ranks.
  virtual void AddFigures(MetricFamilies* /*families*/) {}
};

struct RankMainOptions {
  std::string service;
  // `config` is resolved: every default is filled in. The factory registers its methods with `group`. It is called
  // before the server listens and before the ranks know each other: `context.store` answers FAILED_PRECONDITION until
  // RankService::Load, which is where process groups are made.
  std::function<absl::StatusOr<std::unique_ptr<RankService>>(const RunConfig& config, const RankContext& context,
                                                             RankGroup& group)>
      create;
  // The same of --check, which serves what a service without models can tell (core/preflight).
  std::function<absl::StatusOr<std::unique_ptr<RankService>>(const RunConfig& config, const RankContext& context,
                                                             RankGroup& group)>
      create_check;
  // Of RankGroup; shorter in tests.
  absl::Duration heartbeat = absl::Seconds(1);
};

// Runs one rank until SIGINT, SIGTERM, the parent's end or a broken group, and ends the process. Static objects are not
// destroyed: those of LibTorch take 80 ms.
[[noreturn]] void RankMain(int argc, char** argv, const RankMainOptions& options);

}  // namespace quartet
