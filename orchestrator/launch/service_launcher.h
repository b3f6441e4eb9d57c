// Starts the services of a run on this machine and watches them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/cancellation/cancellation.h"
#include "core/service/process/child_process.h"
#include "orchestrator/launch/launch_plan.h"
#include "orchestrator/launch/service_starter.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct ServiceLauncherOptions {
  // "rollout", "policy_trainer", ...; the program of each is <programs_folder>/<service>/<service>.
  std::vector<std::string> services;
  std::string programs_folder;
  // Where their ranks are: all on this host.
  std::vector<RankLaunch> plan;
  // Handed to each service with --config: it says where the service listens.
  std::string config_path;
  // Each service writes <logs_folder>/<service>.log.
  std::string logs_folder;
  // For all of them, behind the others.
  std::vector<std::string> arguments = {};
  // Where not empty, each service is told to trace to this file, with .<service> before its extension.
  std::string trace;
  // Longest time from start to SERVING.
  absl::Duration start_timeout = absl::Minutes(10);
  // Cancelled, with a message that names the service, when one ends by itself. Ends the waiting in Start when cancelled
  // by someone else. Outlives the launcher.
  Cancellation* cancellation = nullptr;
  // Told again and again, until all have come up, how many have and what the others are at, such as "rollout (reading
  // weights, 3 of 12), scorer"; may be empty.
  std::function<void(int64_t up, const std::string& loading)> on_loading;
};

// While it lives, the services run; none outlives it. One thread, but for Stop, FindDeadService and what it watches.
class ServiceLauncher : public ServiceStarter {
 public:
  // Returns when all services are SERVING. An error names the service that did not come up, how it ended and the last
  // lines of its log; all others are stopped then.
  static absl::StatusOr<std::unique_ptr<ServiceLauncher>> Start(const ServiceLauncherOptions& options);
  ~ServiceLauncher() override;
  ServiceLauncher(const ServiceLauncher&) = delete;
  ServiceLauncher& operator=(const ServiceLauncher&) = delete;

  // host:port of each service's leader.
  const std::map<std::string, std::string>& addresses() const { return addresses_; }

  std::string ProgramsFolderOf(const std::string& service) const override;
  absl::Status StopService(const std::string& service) override;
  absl::StatusOr<std::string> StartService(const std::string& service, const std::string& programs_folder,
                                           const std::vector<std::string>& arguments) override;
  absl::Status KeepService(const std::string& service) override;

  // A broken connection is often seen before the end of the process behind it. Waits up to `patience` for a service to
  // end and returns what is known of its end; OK if all run.
  absl::Status FindDeadService(absl::Duration patience);

  // Asks all services to end and waits for it; those that do not end in time are killed. Idempotent.
  void Stop();

  // What a configuration has, unless it says otherwise, of which `services` are to be launched: each listens on a free
  // port.
  static RunConfig Defaults(const std::vector<std::string>& services);

  // The nearest folder above this program that holds the services, each in a folder of its own (Bazel's output tree).
  static std::string DefaultProgramsFolder();

 private:
  explicit ServiceLauncher(ServiceLauncherOptions options) : options_(std::move(options)) {}
  absl::Status StartAll();
  // Starts its program, which is not waited for.
  absl::StatusOr<std::unique_ptr<ChildProcess>> Begin(const std::string& service, const std::string& programs_folder,
                                                      const std::vector<std::string>& arguments);
  // Until all of them are SERVING, and then their addresses are known; or `poll` has an error.
  absl::Status AwaitServing(const std::vector<std::string>& services, const std::function<absl::Status()>& poll);
  // Of those that have not come up: their names, and what their logs say last.
  std::string WhatOthersAreAt(const std::vector<std::string>& services) const;
  absl::Status Poll();  // OK if all in children_ run
  // mutex_ is held.
  absl::Status DescribeEnd(const std::string& service, const ExitState& exit) const;
  // All at once, so that the graces do not add up.
  static void Terminate(const std::vector<ChildProcess*>& children);
  void Watch(const std::stop_token& stop);
  std::string LogPath(const std::string& service) const;
  // Its last lines, of this start alone.
  std::string LogEnd(const std::string& service, int lines) const;
  std::string AddressPath(const std::string& service) const;

  const ServiceLauncherOptions options_;
  std::map<std::string, std::string> addresses_;
  std::mutex mutex_;
  std::map<std::string, int64_t> log_begins_;  // bytes that earlier starts had written; changes under mutex_
  std::map<std::string, std::unique_ptr<ChildProcess>> children_;
  // That were started anew, but not kept yet, and of what programs; and of which those are that were kept.
  std::map<std::string, std::unique_ptr<ChildProcess>> not_kept_;
  std::map<std::string, std::string> tried_programs_, kept_programs_;
  absl::Status death_;
  bool stopping_ = false;
  std::jthread watcher_;
};

// Of a service's log, in an error.
inline constexpr int kLogLines = 20;

// The last `lines` lines of what the file has from byte `from` on, at most 8 KiB of them; "" where it cannot be read.
std::string EndOfLog(const std::string& path, int lines, int64_t from = 0);

}  // namespace quartet
