// One rank's part of SaveCheckpoint.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/training/engine/rank_calls.pb.h"
#include "core/zero/trainable_model.h"

namespace quartet {

// Writes the Hugging Face folder, where an average of the weights is kept another with "_ema" behind its name, and
// where call.state_folder() is set the training state; all or nothing.
// Collective. An error of one rank is every rank's and leaves them in step; so does the fail point `fail_point`, which
// is passed first.
absl::Status SaveModel(TrainableModel& model, const SaveCall& call, const std::string& fail_point,
                       SaveSummary* summary);

}  // namespace quartet
