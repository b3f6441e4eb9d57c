#include "core/service/rank_main.h"

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

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/trace.h"
#include "core/config/run_config.h"
#include "core/service/address.h"
#include "core/service/port_reservation.h"
#include "core/service/rank_server.h"
#include "core/service/service_flags.h"
#include "core/service/stop_signal.h"

namespace quartet {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(1);
constexpr std::chrono::seconds kStuck{3};
// How long the executor thread may go on with what nobody waits for any more.
constexpr std::chrono::milliseconds kUnwanted{250};

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

// Where this rank listens and where it finds the leader.
absl::Status Place(RankServerOptions* options) {
  const std::string& service = options->service.service;
  QUARTET_ASSIGN_OR_RETURN(HostPort listen, ParseHostPort(PlacementOf(options->config, service).listen()));
  const char* leader_file = getenv("QUARTET_LEADER_FILE");
  const char* master = getenv("MASTER_ADDR");
  const bool leads = options->place.rank == 0;
  if (leader_file != nullptr && *leader_file != '\0') {
    // All ranks are children of one launcher, on this host.
    options->leader_file = leader_file;
    if (!leads) listen.port = 0;
  } else if (options->place.world_size > 1) {
    if (listen.port == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "services.", service, ".listen is ", listen.ToString(),
          ": ranks that were not started by one launcher must know the leader's port; set it to one that is free"));
    }
    HostPort leader = listen;
    if (!IsLoopback(listen.host) && master != nullptr && *master != '\0') leader.host = master;
    if (IsWildcard(leader.host)) {
      return absl::InvalidArgumentError(
          absl::StrCat("services.", service, ".listen is ", listen.ToString(),
                       ": set MASTER_ADDR to the leader's host, or listen on one address"));
    }
    if (!leads) {
      options->leader = leader.ToString();
      QUARTET_ASSIGN_OR_RETURN(listen.host, LocalAddressTowards(leader));
      listen.port = 0;
    } else if (IsWildcard(listen.host)) {
      options->advertised_host = leader.host;
    }
  }
  if (leads && IsWildcard(listen.host) && options->advertised_host.empty()) {
    char name[256] = "localhost";
    gethostname(name, sizeof(name) - 1);
    options->advertised_host = name;
  }
  options->listen = listen.ToString();
  return absl::OkStatus();
}

void EndTrace() {
  if (absl::Status s = StopTrace(); !s.ok()) QUARTET_LOG(kError) << std::string(s.message());
}

int WrongUse(const std::string& service, const absl::Status& status) {
  std::cerr << service << ": " << std::string(status.message()) << std::endl;
  return 2;
}

}  // namespace

int RankMain(int argc, char** argv, const RankMainOptions& options) {
  StopSignal stop;  // before any thread
  absl::StatusOr<ServiceFlags> flags = ParseServiceFlags(argc, argv);
  if (!flags.ok()) return WrongUse(options.service, flags.status());
  if (flags->help) {
    std::cout << ServiceHelp(options.service, "one rank of the service; users start its launcher.");
    return 0;
  }
  absl::StatusOr<std::optional<RankEnvironment>> place = ReadRankEnvironment();
  if (!place.ok()) return WrongUse(options.service, place.status());
  absl::StatusOr<RunConfig> config = LoadServiceConfig(*flags, options.service);
  if (!config.ok()) return WrongUse(options.service, config.status());

  RankServerOptions server_options;
  server_options.service = options;
  server_options.config = *std::move(config);
  if (place->has_value()) server_options.place = **place;
  server_options.address_file = flags->address_file;
  InitLogging(argv[0], options.service, server_options.place.rank);
  if (absl::Status s = Place(&server_options); !s.ok()) {
    QUARTET_LOG(kError) << std::string(s.message());
    return 1;
  }
  if (!flags->trace.empty()) {
    const int rank = server_options.place.rank;
    const std::string file = TraceFileOf(flags->trace, absl::StrCat("rank", rank));
    if (absl::Status s = StartTrace(file, options.service, rank); !s.ok()) return WrongUse(options.service, s);
  }
  std::atomic<int> code{0};
  server_options.on_broken = [&stop, &code](const absl::Status& status) {
    code = 1;
    stop.Request(absl::StrCat("the ranks cannot work together any more: ", std::string(status.message())));
  };

  const auto calls_ended = std::make_shared<std::promise<void>>();
  server_options.on_calls_ended = [calls_ended] { calls_ended->set_value(); };
  const auto ended = std::make_shared<std::atomic<bool>>(false);

  absl::StatusOr<std::unique_ptr<RankServer>> server = RankServer::Create(std::move(server_options));
  if (!server.ok()) {
    QUARTET_LOG(kError) << std::string(server.status().message());
    return 1;
  }
  std::thread serve([&] {
    const absl::Status status = (*server)->Serve();
    if (!status.ok() && status.code() != absl::StatusCode::kCancelled) {
      code = 1;
      stop.Request(absl::StrCat("cannot serve: ", std::string(status.message())));
    }
  });
  std::optional<std::string> reason;
  while (!reason.has_value()) reason = stop.Wait(absl::Hours(1));
  (code == 0 ? QUARTET_LOG(kInfo) : QUARTET_LOG(kError)) << "stopping: " << *reason;

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

}  // namespace quartet
