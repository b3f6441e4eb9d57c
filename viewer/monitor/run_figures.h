// A run's figures for Prometheus, made of what its folder has.
#pragma once

#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/prometheus/families.h"
#include "core/run_folder/records/file_tail.h"
#include "core/run_folder/records/run_events.h"

namespace quartet {

// One thread.
class RunFigures {
 public:
  explicit RunFigures(const std::string& run_dir);

  // Reads what the folder has got since the last time, and adds (what a run that goes on has put aside is in none of
  // them: counters then begin anew):
  // - quartet_run_steps_total, quartet_run_events_total by kind (with the warnings and errors of logs/): of the whole
  //   folder, runs that went on included;
  // - quartet_run_step, quartet_run_last_step_timestamp_seconds: of the newest step;
  // - quartet_run_step_duration_seconds, quartet_run_phase_duration_seconds by phase: histograms of its steps' parts;
  // - quartet_run_memory_peak_bytes by service and category; quartet_run_evaluation by set and metric;
  // - quartet_run_source by source and metric; and each other number of the newest step, "policy/kl" as
  //   quartet_run_policy_kl.
  absl::Status Add(MetricFamilies* families);

 private:
  void AddSteps(MetricFamilies* families) const;

  // Of the steps that metrics.jsonl has.
  struct Steps {
    Steps();
    prometheus::Registry registry;
    prometheus::Histogram& whole;
    prometheus::Family<prometheus::Histogram>& phases;
    double count = 0;
    std::map<std::string, double> newest;  // of the newest step, by name
  };

  FileTail metrics_, evaluations_;
  RunEvents events_;
  std::unique_ptr<Steps> steps_ = std::make_unique<Steps>();
  std::map<std::pair<std::string, std::string>, double> evaluated_;
};

}  // namespace quartet
