// What a configuration is made of, layer over layer.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/programs.h"
#include "core/config/resolving/recorded.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The later over the earlier.
struct ConfigLayers {
  RunConfig defaults;  // of whoever starts the program
  RunConfig preset;
  RecordedConfig file;                 // what is set in it, and beneath all others the defaults that it records
  std::vector<std::string> overrides;  // "path.to.field=value"
};

// Sets in `config` what `above` sets, which takes away what it is in the place of (core/config/alternatives.h).
// Elements of a list are added to those that are there.
void LayOver(const RunConfig& above, RunConfig* config);

// Sets what of these overrides can be told without what they go over: a further element of somebody's list cannot, and
// has an effect wherever it is.
void ApplyAlone(const std::vector<std::string>& overrides, RunConfig* config);

// All of them over each other, as LoadRunConfig of a file has it (core/config/run_config.h). Of an evaluation, which is
// given the file of a whole run, only what overrides set is refused where it is not read.
absl::StatusOr<RunConfig> LoadRunConfig(const ConfigLayers& layers, const std::string& base_folder, Program program);

}  // namespace quartet
