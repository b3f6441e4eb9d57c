// The folder that a run leaves behind.
//
//   run.textproto          the configuration as resolved
//   metrics.jsonl          one object a step
//   events.out.tfevents.*  the same numbers for TensorBoard
//   samples.jsonl          some prompts and answers of each step
//   heldout.jsonl          {"prompt", "label"}: what the evaluation asks
//   checkpoints/           step_N, written by the trainers; latest -> the newest whole one
//   logs/                  one file a service
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/append_file.h"
#include "orchestrator/metrics.h"
#include "orchestrator/tensorboard_writer.h"
#include "proto/run_config.pb.h"

namespace quartet {

// One line of samples.jsonl.
struct SampleRecord {
  int64_t step = 0;
  std::string prompt;
  std::string response;
  std::string label;
  double reward = 0;
  std::map<std::string, float> parts;
  // Mean over the answer's tokens; absent without a reference model.
  std::optional<double> kl;
  std::string finish_reason;  // "stop" or "length"
};

// One line of heldout.jsonl.
struct HeldoutRecord {
  std::string prompt;
  std::string label;
};

// One thread. Errors name the file; RESOURCE_EXHAUSTED where the disk is full.
class RunFolder {
 public:
  // Creates config.run_dir() and what is in it. ALREADY_EXISTS where there is a folder with anything in it but an entry
  // named `allowed`: a run never writes over another's results.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Create(const RunConfig& config, const std::string& allowed = "");
  // Goes on with the folder of a run after its first `steps` steps: what it wrote of later ones (records, samples,
  // checkpoints) is removed, as those steps are made again.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Resume(const RunConfig& config, int64_t steps);

  const std::string& path() const { return path_; }
  std::string config_path() const { return path_ + "/run.textproto"; }
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
  std::string samples_path() const { return path_ + "/samples.jsonl"; }
  std::string heldout_path() const { return path_ + "/heldout.jsonl"; }
  std::string checkpoints_path() const { return path_ + "/checkpoints"; }
  std::string logs_path() const { return path_ + "/logs"; }

  // To metrics.jsonl and TensorBoard. A value that is not finite is null in metrics.jsonl (JSON has no other way).
  absl::Status WriteMetrics(int64_t step, const Metrics& metrics);
  absl::Status WriteSamples(const std::vector<SampleRecord>& samples);
  // Once a run.
  absl::Status WriteHeldout(const std::vector<HeldoutRecord>& records);
  // Makes checkpoints/latest a relative link to `checkpoint_id`, atomically.
  absl::Status PointLatestAt(const std::string& checkpoint_id);
  // Removes all checkpoints but the newest `keep` (0: none is removed).
  absl::Status RemoveOldCheckpoints(int64_t keep);

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::unique_ptr<AppendFile> metrics_;
  std::unique_ptr<AppendFile> samples_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
};

}  // namespace quartet
