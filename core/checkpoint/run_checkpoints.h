// The checkpoints of a run: the folders step_N in run_dir/checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace quartet {

// What a checkpoint has once it is finished: it is written last.
inline constexpr char kCheckpointRecordName[] = "checkpoint.json";

// "step_N", of the checkpoint after `step` steps, above 0.
std::string CheckpointId(int64_t step);

// The folders in `checkpoints` by their steps, the newest first, finished or not; none where there is no such folder.
absl::StatusOr<std::map<int64_t, std::string, std::greater<>>> ListCheckpoints(const std::string& checkpoints);

// Of one of these folders.
bool IsFinished(const std::string& checkpoint);

// For the error of a folder that is no training state, where it has some or stands beside them, as that of a step, of
// checkpoints, of a run or of a step's model: "; there are RUN/checkpoints/step_2/policy_state and ...", of the newest
// step that has any; else "".
std::string HintOfStates(const std::string& folder);

}  // namespace quartet
