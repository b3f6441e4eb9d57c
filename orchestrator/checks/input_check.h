// What of a run can be wrong before anything is made or started: the files and devices that its configuration names.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/config/run_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Certificates and the actor's folder; with `launch` also what the services that are started here will load: model
// folders (shapes and vocabularies, lengths, what weights there are), training states, the HTTP interface's files, and
// whether there are devices for them. Errors name the option, what is wrong and what would help.
absl::Status CheckInputs(const RunConfig& config, Program program, bool launch);

// That a batch is not larger than all `prompts` prompts, so that it would have to repeat some.
absl::Status CheckBatch(const RunConfig& config, int64_t prompts);

}  // namespace quartet
