#include "deploy/slurm/job.h"

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/service/process/child_process.h"
#include "core/terminal/continue_command.h"

namespace quartet {
namespace {

constexpr absl::Duration kPollInterval = absl::Seconds(1);
// A job that has not started by then waits for something that should be said.
constexpr absl::Duration kSoon = absl::Seconds(10);

// Longer than Slurm's commands wait for its daemons themselves.
constexpr absl::Duration kCommandTimeout = absl::Minutes(2);

absl::StatusOr<ShellResult> Ask(const std::string& command, const Cancellation& cancellation) {
  return RunInShell(command, kCommandTimeout, [&] { return cancellation.status(); });
}

// Why a job waits that will never start as it is.
bool IsForEver(const std::string& reason) {
  for (const char* one : {"PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS",
                          "AccountNotAllowed", "QOSNotAllowed", "launch_failed_requeued_held"}) {
    if (reason == one) return true;
  }
  return false;
}

bool Waits(const SlurmJobState& job) {
  return job.state == "PENDING" || job.state == "CONFIGURING" || absl::StartsWith(job.state, "REQUEUE") ||
         job.state == "SPECIAL_EXIT" || job.state == "RESV_DEL_HOLD";
}

// The states that Slurm leaves a job in (squeue(1), job state codes). Others are of one that runs, and not all are
// known: it is SIGNALING for a moment, or STOPPED.
bool HasEnded(const SlurmJobState& job) {
  for (const char* one : {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
                          "DEADLINE", "BOOT_FAIL", "REVOKED", "LAUNCH_FAILED"}) {
    if (job.state == one) return true;
  }
  return false;
}

}  // namespace

absl::Status CheckSlurm() {
  for (const char* command : {"sbatch", "scontrol", "squeue", "scancel", "srun"}) {
    QUARTET_ASSIGN_OR_RETURN(const ShellResult found,
                             RunInShell(absl::StrCat("command -v ", command), kCommandTimeout));
    if (found.end.ok()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--engine=slurm: there is no ", command,
                     " here; run this on a login node of the cluster, or install Slurm's client (slurm-client)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SubmitSlurmJob(const std::string& script, const Cancellation& cancellation) {
  QUARTET_ASSIGN_OR_RETURN(const ShellResult said,
                           Prefixed("squeue tells whether the job was submitted",
                                    Ask("sbatch --parsable " + ShellWord(script), cancellation)));
  // "17", or "17;cluster", below what it warns of.
  const std::vector<std::string> lines = absl::StrSplit(said.output, '\n');
  const std::string id = std::vector<std::string>(absl::StrSplit(lines.back(), ';')).front();
  int64_t number = 0;
  if (said.end.ok() && absl::SimpleAtoi(id, &number)) return id;
  return absl::FailedPreconditionError(absl::StrCat("sbatch refuses ", script, ": ", said.output));
}

SlurmJobState ParseSlurmJob(const std::string& text) {
  std::map<std::string, std::string> fields;
  for (const std::string& field :
       std::vector<std::string>(absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()))) {
    const size_t equals = field.find('=');
    if (equals != std::string::npos) fields.emplace(field.substr(0, equals), field.substr(equals + 1));
  }
  SlurmJobState job = {.state = fields["JobState"], .reason = fields["Reason"]};
  // "2:0": exit code and signal.
  const std::vector<std::string> code = absl::StrSplit(fields["ExitCode"], ':');
  int signal = 0;
  if (!absl::SimpleAtoi(code.front(), &job.exit_code)) job.exit_code = 0;
  if (code.size() > 1 && absl::SimpleAtoi(code[1], &signal) && signal != 0) job.exit_code = 128 + signal;
  if (!absl::SimpleAtoi(fields["Restarts"], &job.restarts)) job.restarts = 0;
  return job;
}

absl::StatusOr<SlurmJobState> ReadSlurmJob(const std::string& id, const Cancellation& cancellation) {
  QUARTET_ASSIGN_OR_RETURN(const ShellResult said, Ask("scontrol show job -o " + id, cancellation));
  if (said.end.ok()) return ParseSlurmJob(said.output);
  if (absl::StrContains(said.output, "Invalid job id")) return SlurmJobState();
  return absl::UnavailableError(absl::StrCat("scontrol show job ", id, ": ", said.output));
}

absl::Status FollowSlurmJob(const std::string& id, const std::string& log_path, FileTail& log, TerminalView& view,
                            const Cancellation& cancellation) {
  const std::string job_name = absl::StrCat("job ", id);
  Deadline says_why = Deadline::In(kSoon);
  bool said_wait = false;
  int restarts = 0;
  const auto show_log = [&]() -> absl::Status {
    std::string lines;
    QUARTET_RETURN_IF_ERROR(log.Read(&lines));
    if (!lines.empty()) view.Print(lines.substr(0, lines.size() - 1));
    return absl::OkStatus();
  };
  bool unreachable = false;
  while (true) {
    if (!cancellation.status().ok()) {
      return absl::CancelledError(
          absl::StrCat(job_name, " goes on; what it prints is in ", log_path, ", and \"scancel ", id, "\" ends it"));
    }
    const absl::StatusOr<SlurmJobState> job = ReadSlurmJob(id, cancellation);
    QUARTET_RETURN_IF_ERROR(show_log());
    if (!cancellation.status().ok()) continue;
    if (!job.ok()) {
      if (!unreachable) view.Print(std::string(job.status().message()));
      unreachable = true;
    } else if (job->state.empty()) {
      return absl::UnavailableError(
          absl::StrCat("Slurm does not know ", job_name, " any more; its end is in ", log_path));
    } else if (Waits(*job)) {
      unreachable = false;
      if (job->restarts > restarts) {
        restarts = job->restarts;
        view.Print(absl::StrCat(job_name, " is queued again"));
        says_why = Deadline::In(kSoon);
        said_wait = false;
      }
      if (IsForEver(job->reason)) {
        QUARTET_RETURN_IF_ERROR(Ask("scancel " + id, cancellation).status());
        return absl::InvalidArgumentError(
            absl::StrCat(job_name, " would wait for ever: ", job->reason,
                         " (squeue(1), job reason codes). It is cancelled; ask for less (cluster.num_nodes, "
                         "services.*.num_nodes) or of others (--sbatch)"));
      }
      if (!said_wait && says_why.passed()) {
        view.Print(absl::StrCat(job_name, " has not started yet: ", job->reason));
        said_wait = true;
      }
      view.Begin(absl::StrCat(job_name, " waits: ", job->reason));
    } else if (!HasEnded(*job)) {
      unreachable = false;
      view.Begin(absl::StrCat(job_name, " runs"));
    } else {
      view.End();
      if (job->state == "COMPLETED") return absl::OkStatus();
      const std::string message = absl::StrCat(job_name, " has ended: ", job->state, ", exit code ", job->exit_code);
      if (job->state == "CANCELLED") return absl::CancelledError(message);
      return job->exit_code == 2 ? absl::InvalidArgumentError(message) : absl::UnavailableError(message);
    }
    absl::SleepFor(kPollInterval);
  }
}

}  // namespace quartet
