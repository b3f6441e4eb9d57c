// A run's figures for Prometheus, made of what its folder has.
#pragma once

#include <prometheus/registry.h>

#include <map>
#include <string>

#include "absl/status/status.h"
#include "core/metrics/families.h"
#include "orchestrator/run_folder/file_tail.h"

namespace quartet {

// One thread.
class RunFigures {
 public:
  explicit RunFigures(const std::string& run_dir);

  // Reads what the folder has got since the last time, and adds:
  // - quartet_run_steps_total, quartet_run_events_total by kind: of the whole folder, runs that went on included;
  // - quartet_run_step, quartet_run_last_step_timestamp_seconds: of the newest step;
  // - quartet_run_step_duration_seconds, quartet_run_phase_duration_seconds by phase: histograms of its steps' parts;
  // - quartet_run_memory_peak_bytes by service and category; quartet_run_evaluation by set and metric;
  // - quartet_run_source by source and metric; and each other number of the newest step, "policy/kl" as
  //   quartet_run_policy_kl.
  absl::Status Add(MetricFamilies* families);

 private:
  void AddSteps(MetricFamilies* families) const;

  FileTail metrics_, evaluations_, events_;
  prometheus::Registry registry_;
  prometheus::Histogram& step_;
  prometheus::Family<prometheus::Histogram>& phases_;
  double steps_ = 0;
  std::map<std::string, double> newest_;  // of the newest step, by name
  std::map<std::pair<std::string, std::string>, double> evaluated_;
  std::map<std::string, double> events_of_;
};

}  // namespace quartet
