// A training state as a trainer leaves it, of one parameter.
#pragma once

#include <cstdint>
#include <string>

#include "core/run_folder/checkpoints/checkpoint_record.h"

namespace quartet {

// In `folder`, which is made, after so many optimizer steps.
SavedTrainer WriteTrainingState(const std::string& folder, int64_t steps);

}  // namespace quartet
