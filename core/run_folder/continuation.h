// What a run that goes on may do otherwise than before.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/run_folder/run_inputs.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Whether what is learned next follows from the field (or the file that it names): the model, the data and their order.
bool DecidesWhatIsLearned(const std::string& path);

// Whether rows that are the same may read otherwise, or others of them be in use, where the field alone is another, and
// ChangesOfRun lets it pass: a checkpoint's hash of its prompts tells.
bool MayChangeRows(const std::string& path);

// INVALID_ARGUMENT where the run that began as `before` is another program's than that which reads `now`.
absl::Status CheckProgramOfRun(const RunConfig& before, const RunConfig& now);

// Fields of `now` that `before`, of the same run, has otherwise, one line each with both values, but for where the run
// and its services are; then `inputs`, a line each. FAILED_PRECONDITION with such lines where models, data (but for
// rows that were mended) or their order, the seed or the batch are among them, unless now.train().allow_changed_run().
// Both are resolved.
absl::StatusOr<std::vector<std::string>> ChangesOfRun(const RunConfig& before, const RunConfig& now,
                                                      const std::vector<ChangedInput>& inputs);

}  // namespace quartet
