// Saves what training has made of a model (master weights, optimizer state, step count) and puts it back, at any
// world size, mesh, ZeRO stage and compute type, bit for bit. The files: core/checkpoint/state_folder.h.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/zero/trainable_model.h"

namespace quartet {

struct SavedState {
  int64_t bytes = 0;           // of all files
  uint64_t manifest_hash = 0;  // as StateReader::manifest_hash
};

// Writes `folder`, which must not exist and which all ranks must see; every rank writes what it owns, straight from its
// shard. It appears all at once: written as `folder`.partial, synced, renamed. Collective.
// An error of any rank is every rank's error, leaves nothing behind and the ranks in step: ALREADY_EXISTS;
// RESOURCE_EXHAUSTED where the disk is full. UNAVAILABLE where a collective failed: the ranks are not in step then.
absl::StatusOr<SavedState> SaveTrainingState(TrainableModel& model, const std::string& folder);

// Puts the state of `folder` in place of the model's own. Each rank reads only the ranges that it owns (at stage 0 and
// on a mesh a part of what it keeps, and gets the rest from the others); what was read is verified by the manifest's
// hashes. Collective; errors are every rank's and name file and tensor, and the model must not be used after one.
// INVALID_ARGUMENT: the state is of another model (a parameter is missing, or has another shape) or another
// optimizer, or lacks a kind that the model keeps; of options of the model's section of the configuration, `section`.
absl::Status LoadTrainingState(TrainableModel& model, const std::string& folder, const std::string& section = "actor");

}  // namespace quartet
