#include "viewer/run_status/run_status.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/base/time/time_left.h"
#include "core/cancellation/cancellation.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/clients/service_clients.h"
#include "core/config/resolving/recorded.h"
#include "core/config/run_config.h"
#include "core/errors/exceptions.h"
#include "core/run_folder/phase_file.h"
#include "core/run_folder/records/file_tail.h"
#include "core/run_folder/records/record_fields.h"
#include "core/run_folder/records/run_events.h"
#include "core/run_folder/run_lock.h"
#include "nlohmann/json.hpp"

namespace quartet {
namespace {

using Json = nlohmann::json;

// Steps whose mean says how long one takes, as on the console.
constexpr size_t kLatest = 10;
// Of metrics.jsonl that many bytes at its end are read: more than kLatest records.
constexpr int64_t kTail = 256 << 10;

absl::Time TimeOf(double unix_seconds) { return absl::UnixEpoch() + absl::Seconds(unix_seconds); }

absl::Status ReadSteps(RunStatus* status) {
  FileTail metrics(status->run_dir + "/metrics.jsonl", kTail);
  std::string lines;
  QUARTET_RETURN_IF_ERROR(metrics.Read(&lines));
  const std::vector<Json> records = Records(lines);
  if (records.empty()) return absl::OkStatus();
  status->steps_done = static_cast<int64_t>(NumberIn(records.back(), "step", 0)) + 1;
  status->last_step = TimeOf(NumberIn(records.back(), "time/unix", 0));
  const size_t latest = std::min(kLatest, records.size());
  for (size_t i = records.size() - latest; i < records.size(); ++i) {
    status->mean_step += absl::Seconds(NumberIn(records[i], "time/step", 0)) / static_cast<double>(latest);
  }
  return absl::OkStatus();
}

absl::Status ReadEvents(RunStatus* status) {
  RunEvents events(status->run_dir);
  QUARTET_RETURN_IF_ERROR(events.Read());
  std::map<std::string, int64_t> counts = events.Counts();
  status->restarts = counts["restart"];
  status->warnings = counts["warning"];
  status->errors = counts["error"];
  if (const auto newest = events.Newest(); !newest.empty()) {
    status->last_event = absl::StrCat(newest.back()->kind, ": ", newest.back()->text);
  }
  return absl::OkStatus();
}

// Of a stamp, which lies ahead where the clock was set back since.
std::string Ago(absl::Duration since) {
  since = std::max(since, absl::ZeroDuration());
  if (since < absl::Minutes(2)) return absl::StrFormat("%.0f s", absl::ToDoubleSeconds(since));
  if (since < absl::Hours(2)) return absl::StrFormat("%.0f min", absl::ToDoubleMinutes(since));
  return absl::StrFormat("%.1f h", absl::ToDoubleHours(since));
}

std::string Mebibytes(int64_t bytes) {
  constexpr double kMebi = 1 << 20;
  return absl::StrFormat("%.0f MiB", static_cast<double>(bytes) / kMebi);
}

// The largest of a service's ranks: what it holds on its device, of how much.
std::string MemoryOf(const ServiceInfo& info) {
  int64_t peak = 0, budget = 0;
  for (const RankInfo& rank : info.ranks()) {
    for (const MemoryTotal& total : rank.memory_totals()) {
      if (total.tier() != "device") continue;
      peak = std::max<int64_t>(peak, total.peak_bytes());
      budget = std::max<int64_t>(budget, total.budget_bytes());
    }
  }
  return budget > 0 ? absl::StrCat(Mebibytes(peak), " of ", Mebibytes(budget)) : Mebibytes(peak);
}

// What it has done: weights, optimizer steps.
std::string WorkOf(const ServiceInfo& info) {
  std::vector<std::string> parts;
  if (info.service() == "rollout" || info.service() == "policy_trainer") {
    parts.push_back(absl::StrCat("weights ", info.policy_version()));
  }
  if (!info.ranks().empty() && info.ranks(0).optimizer_steps() > 0) {
    parts.push_back(absl::StrCat(info.ranks(0).optimizer_steps(), " optimizer steps"));
  }
  for (const char* name : {"rollout/running_sequences", "rollout/waiting_sequences"}) {
    const auto found = info.metrics().find(name);
    if (found != info.metrics().end()) {
      parts.push_back(absl::StrFormat("%.0f %s", found->second, absl::string_view(name).substr(8, 7)));
    }
  }
  return absl::StrJoin(parts, ", ");
}

std::string ProcessesOf(const ServiceInfo& info) {
  std::vector<std::string> pids;
  for (const RankInfo& rank : info.ranks()) pids.push_back(absl::StrCat(rank.pid()));
  return absl::StrJoin(pids, " ");
}

}  // namespace

absl::StatusOr<RunStatus> ReadRunStatus(const std::string& run_dir) {
  RunStatus status = {.run_dir = run_dir};
  if (std::error_code error; !std::filesystem::exists(run_dir + "/run.textproto", error)) {
    return absl::NotFoundError(absl::StrCat(run_dir, " has no run.textproto: it is no run's folder"));
  }
  const absl::StatusOr<std::string> text = ReadFile(run_dir + "/state.json");
  const Json state = Json::parse(text.ok() ? *text : "", nullptr, /*allow_exceptions=*/false);
  if (state.is_object()) {
    status.state = TextIn(state, "state");
    status.why = TextIn(state, "why");
    status.steps = static_cast<int64_t>(NumberIn(state, "steps", 0));
    if (const auto services = state.find("services"); services != state.end() && services->is_object()) {
      for (const auto& [name, address] : services->items()) {
        if (address.is_string()) status.services.push_back({.service = name, .address = address.get<std::string>()});
      }
    }
  }
  const std::optional<std::string> holder = RunLock::HolderOf(run_dir);
  status.holder = holder.value_or("");
  if (status.state == "running" && !holder.has_value()) status.state = "lost";
  if (const auto phase = PhaseFile::Read(run_dir); phase.has_value() && holder.has_value()) {
    status.phase = phase->phase;
    status.phase_since = phase->since;
  }
  QUARTET_RETURN_IF_ERROR(ReadSteps(&status));
  QUARTET_RETURN_IF_ERROR(ReadEvents(&status));
  QUARTET_ASSIGN_OR_RETURN(const auto checkpoints, ListCheckpoints(run_dir + "/checkpoints"));
  const auto newest = std::find_if(checkpoints.begin(), checkpoints.end(),
                                   [](const auto& checkpoint) { return IsFinished(checkpoint.second); });
  if (newest != checkpoints.end()) status.checkpoint = CheckpointId(newest->first);
  return status;
}

void AskServices(absl::Duration patience, RunStatus* status) {
  absl::StatusOr<RunConfig> read = ReadConfigToShow(status->run_dir + "/run.textproto");
  if (!read.ok()) {
    for (ServiceStatus& service : status->services) service.status = read.status();
    return;
  }
  RunConfig& config = *read;
  config.mutable_train()->set_call_timeout_seconds(
      std::max(1, static_cast<int>(std::ceil(absl::ToDoubleSeconds(patience)))));
  for (const ServiceStatus& service : status->services) {
    MutablePlacementOf(&config, service.service)->set_listen(service.address);
  }
  Cancellation cancellation;
  std::vector<std::jthread> asking;
  for (ServiceStatus& service : status->services) {
    asking.emplace_back([&] {
      service.status = CatchAll([&]() -> absl::Status {
        QUARTET_ASSIGN_OR_RETURN(const auto client, ConnectService(config, service.service, &cancellation));
        QUARTET_ASSIGN_OR_RETURN(service.info, client->GetInfo());
        return absl::OkStatus();
      });
    });
  }
  asking.clear();  // joins them
}

std::string PrintRunStatus(const RunStatus& s, absl::Time now) {
  std::string out =
      absl::StrCat(s.run_dir, ": ",
                   s.state.empty()     ? "of an unknown state"
                   : s.state == "lost" ? "lost: it says that it runs, but its orchestrator has ended without a word"
                                       : s.state,
                   "\n");
  if (!s.why.empty()) absl::StrAppend(&out, "  ", absl::StrJoin(absl::StrSplit(s.why, '\n'), "\n  "), "\n");
  if (!s.holder.empty()) absl::StrAppend(&out, "orchestrator  ", s.holder, "\n");
  if (!s.phase.empty()) absl::StrAppend(&out, "doing         ", s.phase, ", for ", Ago(now - s.phase_since), "\n");
  absl::StrAppend(&out, "steps         ", s.steps_done, s.steps > 0 ? absl::StrCat(" of ", s.steps) : "");
  if (s.steps_done > 0) {
    absl::StrAppend(&out, "; the last one ended ", Ago(now - s.last_step), " ago; one takes ",
                    absl::StrFormat("%.3g s", absl::ToDoubleSeconds(s.mean_step)));
    if (s.state == "running" && s.steps > s.steps_done) {
      absl::StrAppend(&out, "; ", FormatTimeLeft(s.mean_step * static_cast<double>(s.steps - s.steps_done)));
    }
  }
  absl::StrAppend(&out, "\ncheckpoint    ", s.checkpoint.empty() ? "none yet" : s.checkpoint, "\nevents        ",
                  s.restarts, " restarts, ", s.errors, " errors, ", s.warnings, " warnings",
                  s.last_event.empty() ? "" : absl::StrCat("; the last: ", s.last_event), "\n");
  if (s.services.empty()) return out;
  absl::StrAppendFormat(&out, "\n%-15s %-21s %5s  %-22s %-30s %s\n", "service", "address", "ranks", "memory, at most",
                        "", "processes");
  for (const ServiceStatus& service : s.services) {
    absl::StrAppendFormat(&out, "%-15s %-21s ", service.service, service.address);
    if (!service.status.ok()) {
      // Where the run is over, services that it has started are, too.
      const std::string message(service.status.message());
      absl::StrAppend(&out, "does not answer",
                      s.state == "running" ? absl::StrCat(": ", message.substr(0, message.find(" Does it run?"))) : "",
                      "\n");
      continue;
    }
    absl::StrAppendFormat(&out, "%5d  %-22s %-30s %s\n", service.info.ranks_size(), MemoryOf(service.info),
                          WorkOf(service.info), ProcessesOf(service.info));
  }
  std::map<std::string, std::vector<std::string>> of_version;
  for (const ServiceStatus& service : s.services) {
    if (!service.info.version().empty()) of_version[service.info.version()].push_back(service.service);
  }
  for (const auto& [version, services] : of_version) {
    absl::StrAppend(&out, version, of_version.size() > 1 ? ": " + absl::StrJoin(services, ", ") : "", "\n");
  }
  return out;
}

}  // namespace quartet
