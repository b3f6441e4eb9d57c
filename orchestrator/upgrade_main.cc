// Replaces services of a run that goes on, by those of another build.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/cancellation/cancellation.h"
#include "core/command_line/command_line.h"
#include "core/network/host_name.h"
#include "core/run_folder/control_folder.h"
#include "core/run_folder/run_start.h"
#include "core/terminal/interrupt_watch.h"
#include "orchestrator/upgrades/request_check.h"
#include "viewer/run_status/run_status.h"

namespace quartet {
namespace {

struct UpgradeFlags {
  std::string service, bundle, run_dir;
  bool hold = false, release = false;
};

// One after the other: what nothing depends on first, the trainers, whose states move, last.
const std::vector<std::string>& UpgradeOrder() {
  static const auto* const order =
      new std::vector<std::string>{"scorer", "rollout", "critic_trainer", "policy_trainer"};
  return *order;
}

// Where the programs of a bundle are, which is unpacked to a folder of its own name.
std::string ProgramsIn(const std::string& bundle) {
  std::error_code error;
  const std::string inside = bundle + "/quartet";
  return std::filesystem::is_directory(inside, error) ? inside : bundle;
}

// Whether a run that `holder` works for does so on this host.
bool IsHere(const std::string& holder) { return absl::StrContains(holder, absl::StrCat(" on ", HostName(), ",")); }

// What the run is to be asked for, one after the other. INVALID_ARGUMENT: the flags do not fit it.
absl::StatusOr<std::vector<ControlRequest>> RequestsOf(const UpgradeFlags& flags, const RunStatus& run,
                                                       Cancellation& cancellation) {
  if (run.holder.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("no run goes on in ", flags.run_dir));
  }
  std::vector<std::string> has;
  for (const std::string& service : UpgradeOrder()) {
    const auto is_it = [&](const ServiceStatus& one) { return one.service == service; };
    if (std::ranges::any_of(run.services, is_it)) has.push_back(service);
  }
  // What is not known of the run here it says itself.
  const absl::StatusOr<RunConfig> config = LoadRecordedRun(flags.run_dir);
  const std::string programs = flags.bundle.empty() ? "" : ProgramsIn(flags.bundle);
  std::vector<ControlRequest> requests;
  for (const std::string& service : flags.service == "all" && !has.empty() ? has : std::vector{flags.service}) {
    if (!has.empty() && config.ok()) QUARTET_RETURN_IF_ERROR(CheckCanBeReplaced(has, *config, service));
    std::error_code error;
    if (!programs.empty() && service != "all" &&
        (IsHere(run.holder) || std::filesystem::is_directory(programs, error))) {
      QUARTET_RETURN_IF_ERROR(CheckHasPrograms(service, programs));
    }
    requests.push_back({.id = "",
                        .action = flags.hold      ? "hold"
                                  : flags.release ? "release"
                                                  : "upgrade",
                        .service = service,
                        .programs_folder = programs});
  }
  // Once it is known that all are there.
  for (const ControlRequest& request : requests) {
    if (programs.empty() || request.service == "all" || !IsHere(run.holder)) continue;
    QUARTET_RETURN_IF_ERROR(CheckRunsHere(request.service, programs, [&] { return cancellation.status(); }));
  }
  return requests;
}

absl::Status Ask(const UpgradeFlags& flags, const RunStatus& run, const std::vector<ControlRequest>& requests,
                 Cancellation& cancellation) {
  std::printf("waiting for the end of a step (%ld of %ld are done)\n", static_cast<long>(run.steps_done),
              static_cast<long>(run.steps));
  for (const ControlRequest& request : requests) {
    std::fflush(stdout);
    QUARTET_RETURN_IF_ERROR(AskRun(
        flags.run_dir, request,
        [](const std::string& text) {
          std::printf("%s\n", text.c_str());
          std::fflush(stdout);
        },
        [&] { return cancellation.status(); }));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "upgrade", -1);
  UpgradeFlags flags;
  const CommandLine line = {
      .program = "upgrade",
      .before =
          "upgrade: replaces services of a PPO run that goes on, at the end of a step, by those of another build.\n"
          "\nUsage: upgrade --service=NAME --bundle=FOLDER --run_dir=FOLDER\n\nFlags:\n",
      .flags = {{"service", "NAME",
                 "scorer, rollout, critic_trainer or policy_trainer; or all: one after the other, in this order.",
                 Text(&flags.service)},
                {"bundle", "FOLDER",
                 "Where the new programs are: an unpacked bundle, on a path that the hosts of the service see.",
                 UserPath(&flags.bundle)},
                {"run_dir", "FOLDER", "The run's folder.", UserPath(&flags.run_dir)},
                {"hold", "",
                 "Only hold the run at the end of a step, while you replace the service yourself where it is.",
                 Switch(&flags.hold)},
                {"release", "", "Have a run that is held look at the service again, and go on.",
                 Switch(&flags.release)}},
      .after =
          "\nThe new service must answer a few of the run's own sequences as the old one did\n"
          "(train.max_upgrade_diff_mean); else the old one comes back.\n"
          "\nExit codes: 0 once the run goes on with all that were to be replaced; 1 where one was not, and the "
          "run\ngoes on as it was; 2 for a wrong flag, a "
          "service that the run does not have or whose program the\nbundle lacks or does not run here, or where the "
          "folder is no "
          "run's; 130, 143 and 129 after SIGINT, SIGTERM and SIGHUP.\n",
      .check = [&]() -> absl::Status {
        if (flags.run_dir.empty()) {
          return absl::InvalidArgumentError("--run_dir is not given; it names the run's folder");
        }
        if (flags.hold && flags.release) return absl::InvalidArgumentError("give --hold or --release, not both");
        if (flags.service.empty())
          return absl::InvalidArgumentError("--service is not given; it names what to replace");
        if (flags.service != "all" && std::ranges::find(UpgradeOrder(), flags.service) == UpgradeOrder().end()) {
          return absl::InvalidArgumentError(absl::StrCat(
              "--service is \"", flags.service, "\"; allowed: ", absl::StrJoin(UpgradeOrder(), ", "), ", all"));
        }
        if ((flags.hold || flags.release) && flags.service == "all") {
          return absl::InvalidArgumentError("--service=all is for --bundle; hold the run for one service at a time");
        }
        if (flags.bundle.empty() != (flags.hold || flags.release)) {
          return absl::InvalidArgumentError(flags.bundle.empty()
                                                ? "--bundle is not given; it names the folder of the new programs"
                                                : "--bundle has no effect with --hold and --release");
        }
        if (std::error_code error; !std::filesystem::exists(flags.run_dir + "/run.textproto", error)) {
          return absl::InvalidArgumentError(
              absl::StrCat("--run_dir=", flags.run_dir, " has no run.textproto: it is no run's folder"));
        }
        return absl::OkStatus();
      }};
  if (const auto code = ReadCommandLine(argc, argv, line)) return *code;
  const absl::StatusOr<RunStatus> run = ReadRunStatus(flags.run_dir);
  Cancellation cancellation;
  InterruptWatch interrupts(&cancellation);
  const absl::StatusOr<std::vector<ControlRequest>> requests =
      run.ok() ? RequestsOf(flags, *run, cancellation) : absl::StatusOr<std::vector<ControlRequest>>(run.status());
  const absl::Status status = requests.ok() ? Ask(flags, *run, *requests, cancellation) : requests.status();
  // What a run that was asked finds wrong is no wrong flag.
  if (!status.ok() && !absl::IsCancelled(status)) {
    std::fflush(stdout);
    std::fprintf(stderr, "upgrade: %s\n", std::string(status.message()).c_str());
    return absl::IsInvalidArgument(requests.status()) ? 2 : 1;
  }
  return Finish("upgrade", status);
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
