// The folder that a run leaves behind.
//
//   run.textproto          the configuration as resolved
//   inputs.json            hashes of the models and rows that it names
//   metrics.jsonl          one object a step
//   events.out.tfevents.*  the same numbers for TensorBoard
//   samples.jsonl          some prompts and answers of each step
//   evaluations.jsonl      one object for each evaluation of a set
//   heldout.jsonl          {"prompt", "label"}: what evaluations ask
//   checkpoints/           step_N, written by the trainers; latest -> the newest whole one, for people
//   batches/               step_N.safetensors: what step N has learned from (orchestrator/loop/report/batch_file.h)
//   logs/                  one file a service; launch.textproto, what those were started with that the run started
//   events.jsonl           {"time", "step", "kind", "from", "text"}: warnings and continuations
//   state.json             {"program", "state", "why", "steps", "services", "time"}: whether the run goes on, and
//                          why it does not; where its services listen
//   phase.json             what the orchestrator is doing (core/run_folder/phase_file.h)
//   control/               how the run is asked for something (core/run_folder/control_folder.h)
//   plan.json              the memory that was planned (orchestrator/session/plan_writer.h)
//   trace_A-B.json         the timeline of steps over all processes (orchestrator/tracing/step_trace.h)
//   report.html            the page of the run (viewer/page/run_page.h)
//   launch/                what starts the run on a cluster, and what its programs read (deploy/)
//   superseded/            1, 2, ...: each time the run was continued, what of the above it put aside
//   run.lock               names the orchestrator that uses the folder
//
// An orchestrator deletes nothing here but the checkpoints that train.max_ckpt_num does not keep, what is there of one
// that could not be saved, and the batches that train.keep_batches does not keep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "core/run_folder/records/append_file.h"
#include "core/run_folder/records/metrics.h"
#include "core/run_folder/records/records.h"  // IWYU pragma: export
#include "core/run_folder/records/tensorboard_writer.h"
#include "core/run_folder/run_lock.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The first and the last line of run.textproto: with the first and without the last it was cut short. Release 0.1.0
// wrote neither.
inline constexpr char kConfigBegin[] = "# Complete with the last line, \"# end\".\n";
inline constexpr char kConfigEnd[] = "# end\n";

// The folder of a run, for this orchestrator alone while it lives. First Create or Open; then, once the services have
// accepted the run, BeginAfter; then the rest. One thread. Errors name the file; RESOURCE_EXHAUSTED where the disk is
// full; ABORTED where another orchestrator uses the folder.
class RunFolder {
 public:
  // Whether a run may be made in `run_dir`: ALREADY_EXISTS where there is a folder with anything in it but an entry
  // named `allowed` and what a run has left there that has not finished a step. A run never writes over another's
  // results.
  static absl::Status CheckFree(const std::string& run_dir, const std::string& allowed = "");

  // Creates config.run_dir(); errors also as of CheckFree.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Create(const RunConfig& config, const std::string& allowed = "");
  // The folder of a run that is there. Nothing of it changes before BeginAfter.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Open(const RunConfig& config);
  // Whether the folder is one to Open: services have accepted a run in it. It has run.textproto, or, where that was
  // lost, checkpoints.
  static bool HasRun(const std::string& run_dir);

  // What run.textproto will be, in place of the configuration alone; before BeginAfter.
  void UseConfigText(std::string text) { config_ = std::move(text); }
  // What inputs.json will be (PrintRunInputs); before BeginAfter, without it there is none.
  void UseInputsText(std::string text) { inputs_ = std::move(text); }

  // Goes on after the run's first `steps` steps: what the folder has of later ones (records, samples, warnings,
  // checkpoints) moves to superseded/, as those steps are made again. `on_kept` is called with each record that
  // metrics.jsonl keeps, in their order.
  absl::Status BeginAfter(int64_t steps, const std::function<void(const Metrics&)>& on_kept = {});
  bool has_begun() const { return metrics_ != nullptr; }
  // The last step that metrics.jsonl had at BeginAfter; -1 if none.
  int64_t last_recorded_step() const { return last_recorded_step_; }
  // Which of the steps that the run goes on after, in their order, metrics.jsonl had no line of at BeginAfter.
  const std::vector<int64_t>& missing_steps() const { return missing_steps_; }

  // Calls `write` with the path of the file that keeps the batch of step N = `steps_done`, and removes all but the
  // newest `keep` such files.
  absl::Status KeepBatch(int64_t steps_done, int64_t keep,
                         const std::function<absl::Status(const std::string& path)>& write);

  const std::string& path() const { return path_; }
  std::string config_path() const { return path_ + "/run.textproto"; }
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
  std::string samples_path() const { return path_ + "/samples.jsonl"; }
  std::string checkpoints_path() const { return path_ + "/checkpoints"; }
  std::string checkpoint_path(const std::string& id) const { return path_ + "/checkpoints/" + id; }
  std::string logs_path() const { return path_ + "/logs"; }
  std::string launch_config_path() const { return logs_path() + "/launch.textproto"; }

  // To metrics.jsonl, with the time as time/unix (seconds), and TensorBoard. A value that is not finite is null in
  // metrics.jsonl (JSON has no other way).
  absl::Status WriteMetrics(int64_t step, const Metrics& metrics);
  absl::Status WriteSamples(const std::vector<SampleRecord>& samples);
  // Returns when metrics and samples so far are on disk.
  absl::Status SyncRecords();
  absl::Status WriteEvaluation(const EvaluationRecord& record);
  absl::Status WriteState(const RunState& state);
  // `kind` is "warning", "error", "restart" or "upgrade"; `from` the service; without a step: -1.
  absl::Status WriteEvent(const std::string& kind, int64_t step, const std::string& from, const std::string& text);
  absl::Status WriteHeldout(const std::vector<HeldoutRecord>& records);
  // That `saved`, relative to checkpoints/, which the service `trainer` says that it has written, is here.
  // FAILED_PRECONDITION: its run_dir is another.
  absl::Status CheckHasSaved(const std::string& trainer, const std::string& saved) const;
  // Makes a checkpoint of what trainers have written for `record`, whose models it reads for their hashes: the records
  // of its steps, then the commit record are on disk; `latest` points at it, and all but the newest `keep` go. What
  // there is of it goes where it cannot be.
  absl::Status CommitCheckpoint(const CheckpointRecord& record, int64_t keep);
  // Makes checkpoints/latest a relative link to `checkpoint_id`, atomically and durably.
  absl::Status PointLatestAt(const std::string& checkpoint_id);
  // After saves of the parts of a checkpoint, some of which have failed: removes what is there of it, unless somebody
  // may still write it. Returns the first error, of a full disk with what helps and the newest checkpoint that is
  // whole.
  absl::Status GiveUpCheckpoint(const std::string& id, const std::vector<absl::Status>& saves);
  // Removes all checkpoints, finished or not, that are older than the newest `keep` finished ones (0: none is removed).
  absl::Status RemoveOldCheckpoints(int64_t keep);

 private:
  RunFolder(std::string path, std::string config) : path_(std::move(path)), config_(std::move(config)) {}
  // superseded/N, made at the first call.
  absl::StatusOr<std::string> SupersededFolder();
  // Moves the file or folder `name`, relative to the run folder, there.
  absl::Status Supersede(const std::string& name);
  // Writes the file `name`; `aside`, what its old content has that the new one has not, goes there first.
  absl::Status Rewrite(const std::string& name, const std::string& aside, const std::string& content);
  // Appends to the file `name`, which is made where it is not there.
  absl::Status AppendTo(const std::string& name, const std::string& line);
  absl::Status ReplaceText(const std::string& name, const std::string& content);
  // Leaves the lines of `name`, one JSON object each, whose "step" is below `steps`, and returns these steps.
  absl::StatusOr<std::set<int64_t>> KeepSteps(const std::string& name, int64_t steps,
                                              const std::function<void(const Metrics&)>& on_kept = {});
  // Leaves of events.jsonl what is of such a step, or of the run: that it was continued, or a service replaced.
  absl::Status KeepWarnings(int64_t steps);
  // The same of TensorBoard's files.
  absl::Status KeepEvents(int64_t steps);

  const std::string path_;
  std::string config_;  // the text of run.textproto
  std::string inputs_;  // that of inputs.json
  std::unique_ptr<RunLock> lock_;
  std::string superseded_;  // empty until it is needed
  int64_t last_recorded_step_ = -1;
  std::vector<int64_t> missing_steps_;
  std::unique_ptr<AppendFile> metrics_;
  std::unique_ptr<AppendFile> samples_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
};

}  // namespace quartet
