// The run page: one HTML file, without network, that says whether a run learns, what it waits for and what its answers
// look like. Made of what the run folder has (orchestrator/run_folder/run_folder.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/page/kept_samples.h"
#include "orchestrator/page/step_columns.h"
#include "orchestrator/run_folder/file_tail.h"

namespace quartet {

// What is kept is bounded, but for evaluations and checkpoints, of which there are few. One thread.
class RunPage {
 public:
  explicit RunPage(const std::string& run_dir) : run_dir_(run_dir) {}

  // Reads what the files of the folder have got since the last time; one that is not there is empty, and a line that is
  // no record is left out. The error names the file that cannot be read.
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
  struct Mark {
    int64_t step = -1;  // none
    double time = 0;
    std::string kind, from, text;
  };

  absl::Status ReadLines(const std::string& name, std::string* lines);
  absl::Status ReadLog(const std::string& name);
  void AddMetrics(const std::string& lines);
  void AddEvaluations(const std::string& lines);
  void AddMark(Mark mark);
  void AppendRun(std::string* out) const;
  void AppendEvaluations(std::string* out) const;
  void AppendMarks(std::string* out) const;
  void AppendConfig(std::string* out) const;
  void AppendPlan(std::string* out) const;

  const std::string run_dir_;
  std::map<std::string, FileTail> tails_;  // by the file's name
  StepColumns columns_;
  KeptSamples samples_;
  std::map<std::string, Evaluations> evaluations_;
  std::deque<Mark> marks_;
  std::string config_text_, state_text_, plan_text_;
};

}  // namespace quartet
