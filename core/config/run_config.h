// Reads, overrides, completes and checks a run's configuration. LibTorch-free and gRPC-free.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/config/programs.h"
#include "core/config/services.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Lays `overrides` ("path.to.field=value") over the text format file at `path` ("" = an empty configuration), fills in
// every default that proto/run_config.proto names and checks every value and combination, for `program`. Relative paths
// inside resolve against `base_folder` ("" = the one the user is in) and come back absolute. INVALID_ARGUMENT names
// file and line, or field, value and what is allowed. More layers: core/config/resolving/layers.h.
absl::StatusOr<RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides,
                                        const std::string& base_folder, Program program = Program::kPpo);

// Sets fields, each from "path.to.field=value". A repeated message is reached by index ("reward.source.0.rule=number"),
// where the index may be one past the end. Of a list of values the first override replaces what `config` has, further
// ones add theirs; commas stand between values ("data.prompt_data=a,b"), or it is written as in a file (["a,b", "c"]).
absl::Status ApplyOverrides(const std::vector<std::string>& overrides, RunConfig* config);

// Fills in defaults and checks, for `program`; for configurations made in memory. Idempotent. What `program` does not
// read is put back to its default; what has no effect is refused.
absl::Status ResolveRunConfig(RunConfig* config, const std::string& base_folder, Program program = Program::kPpo);
// What has no effect (core/config/needs.h) is cleared, and refused where it is set in `written`, the part of `config`
// that its user wrote and the program reads.
absl::Status ResolveRunConfig(RunConfig* config, const std::string& base_folder, Program program,
                              const RunConfig& written);

// Checks that a resolved configuration has what `program` needs; INVALID_ARGUMENT names the field.
absl::Status CheckFor(const RunConfig& config, Program program);

// Text format with every field, readable by LoadRunConfig.
std::string PrintRunConfig(const RunConfig& config);

}  // namespace quartet
