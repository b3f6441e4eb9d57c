// What of a run can be wrong before anything is made or started: the files and devices that its configuration names.
#pragma once

#include "absl/status/status.h"
#include "core/config/run_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Certificates and the actor's folder; with `launch` also what the services that are started here will load: model
// folders (shapes and vocabularies, lengths, what weights there are), training states, the HTTP interface's files, and
// whether there are devices for them. Errors name the option, what is wrong and what would help.
absl::Status CheckInputs(const RunConfig& config, Program program, bool launch);

}  // namespace quartet
