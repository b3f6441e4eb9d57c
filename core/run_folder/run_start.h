// Where a run begins: in a new folder, or in one that is there, after its newest checkpoint.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "core/run_folder/run_folder.h"
#include "core/run_folder/run_inputs.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The configuration of the run in `run_dir`, whatever its program, from its run.textproto. Errors: NOT_FOUND, DATA_LOSS
// where the file is cut short, and as of LoadRunConfig.
absl::StatusOr<RunConfig> LoadRecordedRun(const std::string& run_dir);

// Whether RunFolder::Create could use run_dir now; makes nothing. ALREADY_EXISTS says what is in the way,
// ABORTED which orchestrator uses it.
absl::Status CheckNewRunDir(const RunConfig& config, const std::string& allowed_entry);
// The same of OpenRun.
absl::Status CheckRunDir(const RunConfig& config, const std::string& allowed_entry);

// Of a run that OpenRun would go on with, what LoadRecordedRun reads; nothing where it cannot be read, and of a new
// one.
std::optional<RunConfig> ConfigBefore(const RunConfig& config);

struct RunStart {
  std::unique_ptr<RunFolder> folder;
  std::optional<CheckpointRecord> resume;
  // A run had begun in the folder. Without `resume` it had no checkpoint, and begins anew.
  bool had_begun = false;
  // What a person should know: checkpoints that were passed over, and why; options that are others than the run's.
  std::vector<std::string> notes;
};

// With train.load_checkpoint, of a run_dir in which a run has begun, FindNewestCheckpoint (`proceed` as there) in
// RunFolder::Open, and what ChangesOfRun says; else RunFolder::Create. `inputs` is what the run reads.
absl::StatusOr<RunStart> OpenRun(const RunConfig& config, const std::string& allowed_entry,
                                 std::vector<RunInput> inputs, const std::function<absl::Status()>& proceed);

// What OpenRun would say of `inputs` and of what else is otherwise than when the run began, without a look at what its
// checkpoints hold. OK of a new run.
absl::Status CheckChanges(const RunConfig& config, std::vector<RunInput> inputs);

}  // namespace quartet
