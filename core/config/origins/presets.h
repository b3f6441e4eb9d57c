// Methods by name: the files of presets/, as they were built in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct Preset {
  std::string_view name;  // of the file, without its extension
  std::string_view text;
};

// By name.
const std::vector<Preset>& Presets();

// What the preset sets. INVALID_ARGUMENT names those that there are.
absl::StatusOr<RunConfig> ReadPreset(std::string_view name);

// One line a preset, aligned: its name and the first comment of its file.
std::string DescribePresets();

}  // namespace quartet
