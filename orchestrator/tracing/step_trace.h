// The timeline of some steps of a run over all its processes, as one file: train.trace_steps.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/clients/service_clients.h"
#include "core/config/step_range.h"
#include "core/run_folder/run_folder.h"
#include "core/terminal/terminal_view.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Told of each step's begin and end, it makes all ranks record those that are asked for, and writes them to the run
// folder after the last of them: trace_A-B.json, a JSON array of the Trace Event Format. Times count from the first of
// them. What of it fails is a warning, and what there is of the others is written. One thread.
class StepTrace {
 public:
  // Of a run of `steps` steps in all that makes `first` first. `config` is checked; all else outlives this.
  StepTrace(const RunConfig& config, int64_t first, int64_t steps, std::vector<ServiceClient*> services,
            RunFolder& folder, TerminalView& view);
  // A run that ends before the last of the steps has the trace of those that it has begun.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  void BeginStep(int64_t step);
  void EndStep(int64_t step);

 private:
  void Start(int64_t step);
  void Write(int64_t last);
  absl::Status WriteTo(std::FILE* file, int64_t last);
  void Warn(int64_t step, const std::string& what);

  const std::vector<ServiceClient*> services_;
  RunFolder& folder_;
  TerminalView& view_;
  std::optional<StepRange> steps_;  // to be traced
  // While a trace is recorded: its first step, and the one under way with its beginning.
  std::optional<int64_t> first_;
  int64_t step_ = 0, step_start_ = 0;
  std::vector<ServiceClient*> recording_;
};

}  // namespace quartet
