// The run page: one HTML file, without network, that says whether a run learns, what it waits for and what its answers
// look like. Made of what the run folder has (core/run_folder/run_folder.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/run_folder/records/file_tail.h"
#include "core/run_folder/records/run_events.h"
#include "viewer/page/kept_samples.h"
#include "viewer/page/step_columns.h"

namespace quartet {

// What is kept is bounded, but for evaluations and checkpoints, of which there are few. One thread.
class RunPage {
 public:
  explicit RunPage(const std::string& run_dir)
      : run_dir_(run_dir),
        metric_lines_(run_dir + "/metrics.jsonl"),
        sample_lines_(run_dir + "/samples.jsonl"),
        evaluation_lines_(run_dir + "/evaluations.jsonl"),
        events_(run_dir) {}

  // Reads what the files of the folder have got since the last time; one that is not there is empty, and a line that is
  // no record is left out. What a run that goes on has put aside is forgotten. The error names the file that cannot be
  // read.
  absl::Status Read();
  // Whether there was no configuration of a run.
  bool is_empty() const { return config_text_.empty(); }

  // The whole page.
  std::string Html() const;
  // Its data: run, metrics, evaluations, marks, samples, configuration; without `with_samples` no samples.
  void AppendData(bool with_samples, std::string* out) const;
  // As run_dir/report.html, at once: who reads it sees the old one or the new one.
  absl::Status Write() const;

 private:
  struct Evaluations {
    std::string metric;
    int64_t prompts = 0, samples = 0;
    std::vector<int64_t> steps;
    std::vector<double> values;
  };
  void AddMetrics(const std::string& lines);
  void AddEvaluations(const std::string& lines);
  void AppendRun(std::string* out) const;
  void AppendEvaluations(std::string* out) const;
  void AppendMarks(std::string* out) const;
  void AppendConfig(std::string* out) const;
  void AppendPlan(std::string* out) const;

  const std::string run_dir_;
  FileTail metric_lines_, sample_lines_, evaluation_lines_;
  StepColumns columns_;
  std::deque<int64_t> checkpoints_;  // of each, the steps done
  KeptSamples samples_;
  std::map<std::string, Evaluations> evaluations_;
  RunEvents events_;
  std::string config_text_, state_text_, plan_text_;
};

}  // namespace quartet
