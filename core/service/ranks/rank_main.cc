#include "core/service/ranks/rank_main.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/trace.h"
#include "core/config/run_config.h"
#include "core/service/process/stop_signal.h"
#include "core/service/ranks/addresses/rank_addresses.h"
#include "core/service/ranks/rank_server.h"
#include "core/service/rpc/grpc_log.h"
#include "core/service/service_flags.h"

namespace quartet {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(1);
constexpr std::chrono::seconds kStuck{3};
// An orchestrator that has been away for so long after SIGTERM has ended.
constexpr absl::Duration kLeft = absl::Seconds(2);
// How long the executor thread may go on with what nobody waits for any more.
constexpr std::chrono::milliseconds kUnwanted{250};

void EndTrace() {
  if (absl::Status s = StopTrace(); !s.ok()) QUARTET_LOG(kError) << std::string(s.message());
}

int WrongUse(const std::string& service, const absl::Status& status) {
  Finish(service, status);
  return 2;
}

// 2: what it was told to do is wrong, such as the path of a model.
int CodeOf(const absl::Status& status) { return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? 2 : 1; }

// The exit code.
int RunRank(int argc, char** argv, const RankMainOptions& options) {
  StopSignal stop;  // before any thread
  ServiceFlags flags;
  const CommandLine line =
      ServiceCommandLine(options.service, "one rank of the service; users start its launcher.", &flags);
  if (const auto wrong = ReadCommandLine(argc, argv, line)) return *wrong;
  absl::StatusOr<std::optional<RankEnvironment>> place = ReadRankEnvironment();
  if (!place.ok()) return WrongUse(options.service, place.status());
  absl::StatusOr<RunConfig> config = LoadServiceConfig(flags, options.service);
  if (!config.ok()) return WrongUse(options.service, config.status());
  if (config->train().save_on_sigterm()) stop.LeaveSigtermToOrchestrator();

  RankServerOptions server_options;
  server_options.service = options;
  if (flags.check) server_options.service.create = options.create_check;
  server_options.config = *std::move(config);
  if (place->has_value()) server_options.place = **place;
  server_options.address_file = flags.address_file;
  InitLogging(argv[0], options.service, server_options.place.rank);
  TakeGrpcLog();
  const std::string listen = PlacementOf(server_options.config, options.service).listen();
  if (const std::string leader_fd = Environment("QUARTET_LEADER_FD"); !leader_fd.empty()) {
    server_options.leader_file = absl::StrCat("/proc/self/fd/", leader_fd);
    if (int fd = -1; absl::SimpleAtoi(leader_fd, &fd)) fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  const absl::StatusOr<RankAddresses> addresses = FindRankAddresses(
      options.service, listen, server_options.place, !server_options.leader_file.empty(), Environment("MASTER_ADDR"));
  if (!addresses.ok()) {
    QUARTET_LOG(kError) << std::string(addresses.status().message());
    return absl::IsInvalidArgument(addresses.status()) ? 2 : 1;
  }
  server_options.listen = addresses->listen;
  server_options.advertised_host = addresses->advertised_host;
  server_options.leader = addresses->leader;
  if (!flags.trace.empty()) {
    const int rank = server_options.place.rank;
    const std::string file = TraceFileOf(flags.trace, absl::StrCat("rank", rank));
    if (absl::Status s = StartTrace(file, options.service, rank); !s.ok()) return WrongUse(options.service, s);
  }
  std::atomic<int> code{0};
  server_options.on_broken = [&stop, &code](const absl::Status& status) {
    int none = 0;
    code.compare_exchange_strong(none, 1);  // why this rank cannot serve says more
    stop.Request(absl::StrCat("the ranks cannot work together any more: ", std::string(status.message())));
  };

  server_options.on_leave = [&stop](const std::string& why) { stop.Request(why); };

  // Who checks the hosts asks once, and ends what it has started.
  const absl::Duration patience = flags.check
                                      ? absl::ZeroDuration()
                                      : absl::Seconds(server_options.config.services().orchestrator_timeout_seconds());
  const auto calls_ended = std::make_shared<std::promise<void>>();
  server_options.on_calls_ended = [calls_ended] { calls_ended->set_value(); };
  const auto ended = std::make_shared<std::atomic<bool>>(false);

  absl::StatusOr<std::unique_ptr<RankServer>> server = RankServer::Create(std::move(server_options));
  if (!server.ok()) {
    QUARTET_LOG(kError) << std::string(server.status().message());
    return CodeOf(server.status());
  }
  std::thread serve([&] {
    const absl::Status status = (*server)->Serve();
    if (!status.ok() && status.code() != absl::StatusCode::kCancelled) {
      code = CodeOf(status);
      stop.Request(absl::StrCat("cannot serve: ", std::string(status.message())));
    }
  });
  std::optional<std::string> reason;
  while (!reason.has_value()) {
    const bool counts = patience > absl::ZeroDuration() || stop.left_sigterm();
    reason = stop.Wait(counts ? absl::Seconds(1) : absl::Hours(1));
    if (stop.left_sigterm() && (*server)->unwatched() > kLeft) {
      stop.Request("SIGTERM, and no orchestrator is there");
    }
    if (patience > absl::ZeroDuration() && (*server)->unwatched() > patience) {
      code = 1;  // nobody has told it to
      stop.Request(absl::StrCat("no orchestrator has been there for ", absl::FormatDuration(patience),
                                " (services.orchestrator_timeout_seconds)"));
    }
  }
  (code == 0 ? QUARTET_LOG(kInfo) : QUARTET_LOG(kError)) << "stopping: " << *reason;
  stop.Tell(*reason);

  // Model code and collectives cannot be interrupted: a rank that is still in one is left as it is.
  std::thread([exit_code = code.load(), calls_ended, ended] {
    const bool unwanted = calls_ended->get_future().wait_for(kStuck) == std::future_status::ready;
    if (unwanted) std::this_thread::sleep_for(kUnwanted);
    if (unwanted && *ended) return;
    QUARTET_LOG(kWarning) << (unwanted ? "leaving a computation that nobody waits for"
                                       : "the running call did not end; leaving");
    EndTrace();
    _exit(exit_code);
  }).detach();
  (*server)->Shutdown(kGrace, *reason);
  serve.join();
  server->reset();
  *ended = true;
  EndTrace();
  return code;
}

}  // namespace

void RankMain(int argc, char** argv, const RankMainOptions& options) {
  const int code = RunRank(argc, argv, options);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  exit(code);  // where leaks are looked for
#else
  std::cout.flush();
  fflush(nullptr);
  _exit(code);
#endif
}

}  // namespace quartet
