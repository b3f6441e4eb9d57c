// Reads, overrides, completes and checks a run's configuration. LibTorch-free and gRPC-free.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Parses the text format file at `path` ("" = an empty configuration), applies `overrides` ("path.to.field=value";
// repeated fields append), fills in every default that proto/run_config.proto names and checks every value and
// combination. Relative paths inside resolve against `base_folder` ("" = the current one). INVALID_ARGUMENT names file
// and line, or field, value and what is allowed.
absl::StatusOr<RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides,
                                        const std::string& base_folder);

// Fills in defaults and checks; for configurations made in memory.
absl::Status ResolveRunConfig(RunConfig* config, const std::string& base_folder);

// Text format with every field, readable by LoadRunConfig.
std::string PrintRunConfig(const RunConfig& config);

}  // namespace quartet
