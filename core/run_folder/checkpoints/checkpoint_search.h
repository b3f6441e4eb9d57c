// Which of a run's checkpoints it goes on after.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"

namespace quartet {

// The commit record of the newest one that has training states by it; what they hold is not looked at.
std::optional<CheckpointRecord> NewestRecord(const std::string& checkpoints);

struct CheckpointSearch {
  std::optional<CheckpointRecord> found;
  // One sentence for each folder newer than it that was passed over.
  std::vector<std::string> passed_over;
  // What a person should know of the one that is found: that a model's folder, which the run does not go on from, is
  // damaged; that its record has no hash of its own.
  std::vector<std::string> notes;
};

// The newest checkpoint of the folder `checkpoints` that verifies: its commit record is there and names training
// states, which are read whole. What `latest` points at does not matter. Nothing where no save has come to its commit
// record. Where there are records but none verifies, the error of the newest, with those of all others in its message.
// `proceed` is asked again and again; its error ends the search.
absl::StatusOr<CheckpointSearch> FindNewestCheckpoint(const std::string& checkpoints,
                                                      const std::function<absl::Status()>& proceed);

}  // namespace quartet
