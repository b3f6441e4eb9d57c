// How a run stands: what its folder says, and what its services say of themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"

namespace quartet {

struct ServiceStatus {
  std::string service, address;
  absl::Status status;  // of asking it
  ServiceInfo info;     // where that is OK
};

struct RunStatus {
  std::string run_dir;
  // "running", "finished", "stopped" or "failed", as the run itself has said; "lost" where it says that it runs, but no
  // orchestrator uses its folder any more; "" where the folder is of an earlier build.
  std::string state;
  std::string why;
  std::string holder;  // the orchestrator: process, host, since when
  std::string phase;   // what it does
  absl::Time phase_since;
  int64_t steps = 0;  // in all; 0: not known
  int64_t steps_done = 0;
  absl::Time last_step;  // where steps_done > 0
  absl::Duration mean_step;
  std::string checkpoint;                          // the newest, such as "step_20"
  int64_t restarts = 0, warnings = 0, errors = 0;  // of events.jsonl and of logs/
  std::string last_event;
  std::vector<ServiceStatus> services;  // only their names and addresses before AskServices
};

// NOT_FOUND where there is no run in the folder.
absl::StatusOr<RunStatus> ReadRunStatus(const std::string& run_dir);

// Asks each service, side by side, and waits at most about `patience` for its answer. Where run.textproto cannot be
// read the status of each says so: with it one would know how.
void AskServices(absl::Duration patience, RunStatus* status);

// A few lines and a table, as of `now`.
std::string PrintRunStatus(const RunStatus& status, absl::Time now);

}  // namespace quartet
