// A job of Slurm, from its submission to its end, by Slurm's own commands.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cancellation/cancellation.h"
#include "core/run_folder/records/file_tail.h"
#include "core/terminal/terminal_view.h"

namespace quartet {

// Whether Slurm's commands are here; FAILED_PRECONDITION names the one that is not.
absl::Status CheckSlurm();

// Each of Slurm's commands has two minutes, and ends where `cancellation` is cancelled.

// Submits the script; the job's id. Of an error, what sbatch says.
absl::StatusOr<std::string> SubmitSlurmJob(const std::string& script, const Cancellation& cancellation);

struct SlurmJobState {
  std::string state;   // "PENDING", "RUNNING", "COMPLETED", ...; "": Slurm does not know the job (any more)
  std::string reason;  // why it waits: "Resources"
  int exit_code = 0;   // of its script
  int restarts = 0;
};
absl::StatusOr<SlurmJobState> ReadSlurmJob(const std::string& id, const Cancellation& cancellation);
// What `scontrol show job` prints, of which the first component's line counts.
SlurmJobState ParseSlurmJob(const std::string& text);

// Shows what the job waits for and then what `log`, the tail of `log_path`, gets, until the job has ended. OK: by
// itself, with exit code 0. One that can never start is cancelled: INVALID_ARGUMENT. A cancelled `cancellation` ends
// the watching and nothing else.
absl::Status FollowSlurmJob(const std::string& id, const std::string& log_path, FileTail& log, TerminalView& view,
                            const Cancellation& cancellation);

}  // namespace quartet
