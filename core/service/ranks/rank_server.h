// One rank of a service without the process around it: several can be parts of one process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/service/ranks/rank_main.h"
#include "core/service/service_flags.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct RankServerOptions {
  RankMainOptions service;
  // Resolved.
  RunConfig config;
  RankEnvironment place;
  // As in RankAddresses. Without `leader` other ranks read its address from `leader_file`.
  std::string listen;
  std::string advertised_host;
  std::string leader;
  // Of a launcher that has started all ranks, and watches them. The leader writes its address there as soon as it
  // listens, a line. "": there is no launcher.
  std::string leader_file;
  // How long it, which knows how a rank ended, gets to say so before others say only that the rank is gone.
  absl::Duration launcher_precedence = absl::Seconds(2);
  // The leader writes its address there once it serves.
  std::string address_file;
  absl::Duration connect_timeout = absl::Seconds(60);
  // The group of ranks is not usable any more; called at most once, from any thread. The owner shuts down.
  std::function<void(const absl::Status&)> on_broken;
  // Another rank was told to end, and why: this one can do nothing without it. From any thread. May be empty.
  std::function<void(const std::string&)> on_leave;
  // Shutdown calls it once no call is left, before it waits for the executor thread; at most once. May be empty.
  std::function<void()> on_calls_ended;
};

class RankServer {
 public:
  // Creates the service and listens. Errors: an address in use, refused or not of this host; credentials.
  static absl::StatusOr<std::unique_ptr<RankServer>> Create(RankServerOptions options);
  virtual ~RankServer() = default;  // shuts down

  // Meets the other ranks, loads on all, then reports SERVING. An error on any rank is an error of all, and names the
  // rank. Once; may be ended from another thread by Shutdown.
  virtual absl::Status Serve() = 0;

  // NOT_SERVING, no new calls; running ones end with UNAVAILABLE, which says `why`: at once where their clients have
  // not sent all, the others after `grace`, or cut off where they do not end soon even then. Waits for the executor
  // thread. Idempotent.
  virtual void Shutdown(absl::Duration grace, const std::string& why) = 0;

  // How long the service has been serving and no orchestrator has been there; zero on ranks that orchestrators do not
  // talk to.
  virtual absl::Duration unwatched() const = 0;

  virtual const RankContext& context() const = 0;
  // Of its figures for Prometheus; "" where it serves none.
  virtual std::string metrics_url() const = 0;
};

}  // namespace quartet
