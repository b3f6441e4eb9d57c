#include "core/service/process/launcher.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/time/deadline.h"
#include "core/config/run_config.h"
#include "core/hardware/cores.h"
#include "core/hardware/topology.h"
#include "core/service/process/child_process.h"
#include "core/service/process/stop_signal.h"
#include "core/service/service_flags.h"

namespace quartet {
namespace {

// Ranks share the machine's cores: a thread that waits spins for some tens of microseconds, in which the next part of a
// step comes (one that sleeps takes as long to wake, hundreds of times a step), and not for longer.
const std::pair<const char*, const char*> kThreadEnvironment[] = {{"OMP_WAIT_POLICY", "passive"},
                                                                  {"GOMP_SPINCOUNT", "3000"}};
constexpr absl::Duration kGrace = absl::Seconds(3);

int Fail(const std::string& service, const absl::Status& status, int code) {
  Finish(service, status);
  return code;
}

// Makes the GPUs that kNodeGpus gives a rank those that it sees.
absl::Status SeeOwnGpus(const RankEnvironment& place) {
  const char* const said = getenv(kNodeGpus);
  if (said == nullptr) return absl::OkStatus();
  const std::vector<std::string> nodes = absl::StrSplit(said, ';');
  if (place.node >= static_cast<int>(nodes.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(kNodeGpus, " is \"", said, "\", and this rank is on node ", place.node, ", counted from 0"));
  }
  const char* const visible = getenv("CUDA_VISIBLE_DEVICES");
  const std::vector<std::string> names =
      visible == nullptr ? std::vector<std::string>() : absl::StrSplit(visible, ',', absl::SkipEmpty());
  std::vector<std::string> own;
  for (const std::string& gpu : std::vector<std::string>(absl::StrSplit(nodes[place.node], ','))) {
    size_t position = 0;
    if (!absl::SimpleAtoi(gpu, &position) || (visible != nullptr && position >= names.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat(kNodeGpus, " is \"", said, "\", of which \"", gpu, "\" is no position among ",
                       visible == nullptr ? "GPUs" : absl::StrCat("those of CUDA_VISIBLE_DEVICES, \"", visible, "\"")));
    }
    own.push_back(visible == nullptr ? gpu : names[position]);
  }
  setenv("CUDA_VISIBLE_DEVICES", absl::StrJoin(own, ",").c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

// How many threads a rank computes with that Slurm or torchrun has started.
int ThreadsOf(const RankEnvironment& place, int said, const std::vector<int>& own_cores) {
  if (said > 0) return said;
  if (!own_cores.empty()) return static_cast<int>(own_cores.size());
  return place.cores > 0 ? place.cores : ThreadsOfRank(0, place.local_world_size);
}

// Becomes the rank that the environment names. `cores` are of each rank; none: all have all. Returns only on an error.
absl::Status BecomeRank(const std::string& program, const RunConfig& config, const std::string& service,
                        const RankEnvironment& place, const std::vector<std::vector<int>>& cores, char** argv) {
  if (absl::Status s = SeeOwnGpus(place); !s.ok()) return s;
  const std::vector<int> own = cores.empty() ? std::vector<int>() : cores[place.rank];
  if (!own.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : own) {
      if (core < CPU_SETSIZE) CPU_SET(core, &set);
    }
    if (sched_setaffinity(0, sizeof(set), &set) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot run on cores ", FormatCores(own), ", which ", kRankCores,
                                                     " gives rank ", place.rank));
    }
    setenv(kOwnCores, "1", /*overwrite=*/1);
  }
  for (const auto& [name, value] : kThreadEnvironment) setenv(name, value, /*overwrite=*/0);
  // Where the user says nothing torchrun sets it to 1.
  const char* const threads = getenv("OMP_NUM_THREADS");
  const bool said = PlacementOf(config, service).threads() > 0;
  const bool of_torchrun =
      getenv("TORCHELASTIC_RUN_ID") != nullptr && threads != nullptr && std::string(threads) == "1";
  setenv("OMP_NUM_THREADS", absl::StrCat(ThreadsOf(place, PlacementOf(config, service).threads(), own)).c_str(),
         /*overwrite=*/said || of_torchrun);
  argv[0] = const_cast<char*>(program.c_str());
  execv(program.c_str(), argv);
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot run ", program));
}

// What kRankCores says of `ranks` ranks; none where it is not there.
absl::StatusOr<std::vector<std::vector<int>>> RankCores(int ranks) {
  const char* const said = getenv(kRankCores);
  std::vector<std::vector<int>> cores;
  if (said == nullptr) return cores;
  for (const std::string& one : std::vector<std::string>(absl::StrSplit(said, ';'))) cores.push_back(ParseCores(one));
  const bool empty = std::any_of(cores.begin(), cores.end(), [](const std::vector<int>& own) { return own.empty(); });
  if (!empty && static_cast<int>(cores.size()) == ranks) return cores;
  return absl::InvalidArgumentError(
      absl::StrCat(kRankCores, " is \"", said, "\"; it names cores of each of ", ranks, " ranks, such as \"0-3;4-7\""));
}

class Ranks {
 public:
  Ranks(std::string service, int count) : service_(std::move(service)), children_(count) {}

  // `threads` is of each rank, 0: as many as it has cores. `cores` are of each rank; none: all have all.
  absl::Status Start(const std::string& program, const std::vector<std::string>& arguments, int threads,
                     const std::vector<std::vector<int>>& cores, int leader_fd) {
    const int count = static_cast<int>(children_.size());
    for (int r = 0; r < count; ++r) {
      ChildProcessOptions options;
      options.heeds_parent = true;
      options.argv = arguments;
      options.argv.insert(options.argv.begin(), program);
      options.removed_environment = RankEnvironmentNames();
      for (const auto& [name, value] : kThreadEnvironment) options.environment[name] = value;
      options.environment["RANK"] = options.environment["LOCAL_RANK"] = absl::StrCat(r);
      options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = absl::StrCat(count);
      if (!cores.empty()) {
        options.cores = cores[r];
        options.environment[kOwnCores] = "1";
      }
      const int own = cores.empty() ? ThreadsOfRank(0, count) : static_cast<int>(cores[r].size());
      options.environment["OMP_NUM_THREADS"] = absl::StrCat(threads > 0 ? threads : own);
      options.environment["QUARTET_LEADER_FD"] = absl::StrCat(leader_fd);
      absl::StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::Start(options);
      if (!child.ok()) return child.status();
      children_[r] = *std::move(child);
    }
    return absl::OkStatus();
  }

  // Logs the ranks that have ended since the last time; what is known of their ends, or "".
  std::string LogEnded() {
    std::string ends;
    for (size_t r = 0; r < children_.size(); ++r) {
      if (children_[r] == nullptr) continue;
      const std::optional<ExitState> end = children_[r]->Poll();
      if (!end.has_value()) continue;
      const std::string what = LogEnd(r, *end);
      absl::StrAppend(&ends, ends.empty() ? "" : "; ", what);
      children_[r] = nullptr;
    }
    return ends;
  }

  // Whether one of those that have ended said so by its exit code.
  bool ended_by_wrong_use() const { return ended_by_wrong_use_; }
  bool ended_well() const { return ended_well_; }

  void Signal(int number) {
    for (auto& child : children_) {
      if (child != nullptr) child->Signal(number);
    }
  }

  // SIGTERM to all at once, SIGKILL to those that are still there after the grace. `why` is the reason that they
  // give their callers.
  void End(const std::string& why) {
    for (auto& child : children_) {
      if (child == nullptr) continue;
      child->SendReason(why);
      child->Signal(SIGTERM);
    }
    const Deadline deadline = Deadline::In(kGrace + absl::Seconds(1));
    for (size_t r = 0; r < children_.size(); ++r) {
      if (children_[r] == nullptr) continue;
      const std::optional<ExitState> end = children_[r]->Wait(deadline.left());
      if (end.has_value() && !end->ok()) LogEnd(r, *end);
      if (!end.has_value()) {
        QUARTET_LOG(kWarning) << service_ << " rank " << r << " does not stop; killing it";
        children_[r]->Signal(SIGKILL);
        children_[r]->Wait(absl::InfiniteDuration());
      }
      children_[r] = nullptr;
    }
  }

 private:
  std::string LogEnd(size_t rank, const ExitState& end) {
    ended_by_wrong_use_ = ended_by_wrong_use_ || end.code == 2;
    ended_well_ = ended_well_ && end.ok();
    const std::string said = children_[rank]->Said();
    const std::string what = absl::StrCat("rank ", rank, " (pid ", children_[rank]->pid(), ") ended: ", end.Describe(),
                                          said.empty() ? "" : ": ", said);
    (end.ok() ? QUARTET_LOG(kInfo) : QUARTET_LOG(kError)) << service_ << " " << what;
    return what;
  }

  const std::string service_;
  bool ended_by_wrong_use_ = false, ended_well_ = true;
  std::vector<std::unique_ptr<ChildProcess>> children_;  // by rank; null once its end is known
};

}  // namespace

const std::vector<std::string>& RankEnvironmentNames() {
  static const auto* names = new std::vector<std::string>{
      "RANK",         "WORLD_SIZE",          "LOCAL_RANK",        "LOCAL_WORLD_SIZE", "MASTER_ADDR",
      "GROUP_RANK",   "SLURM_PROCID",        "SLURM_NTASKS",      "SLURM_LOCALID",    "SLURM_NTASKS_PER_NODE",
      "SLURM_NODEID", "SLURM_CPUS_PER_TASK", "QUARTET_LEADER_FD", kNodeGpus,          kRankCores,
      kOwnCores};
  return *names;
}

int LauncherMain(int argc, char** argv, const LauncherOptions& options) {
  const std::string& service = options.service;
  ServiceFlags flags;
  if (const auto code = ReadCommandLine(argc, argv, ServiceCommandLine(service, options.summary, &flags))) return *code;
  absl::StatusOr<std::optional<RankEnvironment>> place = ReadRankEnvironment();
  if (!place.ok()) return Fail(service, place.status(), 2);
  absl::StatusOr<RunConfig> config = LoadServiceConfig(flags, service);
  if (!config.ok()) return Fail(service, config.status(), 2);

  const absl::StatusOr<std::vector<std::vector<int>>> cores =
      RankCores(place->has_value() ? (*place)->world_size : PlacementOf(*config, service).ranks());
  if (!cores.ok()) return Fail(service, cores.status(), 2);
  const std::string program = ExecutableFolder() + "/rank";
  if (place->has_value()) {
    if (flags.ranks.has_value() && *flags.ranks != (*place)->world_size) {
      return Fail(service,
                  absl::InvalidArgumentError(absl::StrCat(
                      "--ranks=", *flags.ranks, ", but the environment (RANK and WORLD_SIZE, or SLURM_PROCID and ",
                      "SLURM_NTASKS) says that this process is one of ", (*place)->world_size,
                      " ranks; leave out --ranks, or remove these variables")),
                  2);
    }
    const absl::Status failed = BecomeRank(program, *config, service, **place, *cores, argv);
    return Fail(service, failed, absl::IsInvalidArgument(failed) ? 2 : 1);
  }

  StopSignal stop;
  if (config->train().save_on_sigterm()) stop.LeaveSigtermToOrchestrator();
  InitLogging(argv[0], service, -1);
  // What the leader writes its address into: without a name, it is gone with the last that has it open.
  const int leader_fd = memfd_create("leader", 0);
  if (leader_fd < 0) return Fail(service, absl::ErrnoToStatus(errno, "cannot make a file in memory"), 1);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  // The default has the time in it, which must not differ between ranks.
  arguments.push_back(absl::StrCat("--set=run_dir=", config->run_dir()));
  const ServicePlacement& placement = PlacementOf(*config, service);
  Ranks ranks(service, placement.ranks());
  int code = 0;
  std::string why = "not all ranks could be started";
  bool ranks_know_of_sigterm = false, rank_ended = false;
  if (absl::Status s = ranks.Start(program, arguments, placement.threads(), *cores, leader_fd); !s.ok()) {
    QUARTET_LOG(kError) << std::string(s.message());
    code = 1;
  } else {
    for (;;) {
      const std::optional<std::string> reason = stop.Wait(absl::Seconds(1));
      if (reason.has_value()) {
        QUARTET_LOG(kInfo) << "stopping: " << *reason;
        why = *reason;
        break;
      }
      if (stop.left_sigterm() && !ranks_know_of_sigterm) {
        ranks.Signal(SIGTERM);
        ranks_know_of_sigterm = true;
      }
      const std::string ends = ranks.LogEnded();
      if (!ends.empty()) {
        why = ends;
        rank_ended = true;
        (ranks.ended_well() ? QUARTET_LOG(kInfo) : QUARTET_LOG(kError))
            << (ranks.ended_well() ? "a rank was told to end" : "a rank is missing") << "; ending the others";
        break;
      }
    }
  }
  ranks.End(why);
  // One that was told by another to end may be there before it.
  if (rank_ended && !ranks.ended_well()) code = 1;
  // Others end because of it, and perhaps before it.
  if (code == 1 && ranks.ended_by_wrong_use()) {
    QUARTET_LOG(kError) << "a rank cannot do what it was told to, which its messages name";
    code = 2;
  }
  return code;
}

}  // namespace quartet
