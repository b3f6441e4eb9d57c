// Where each value of a configuration comes from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/config/run_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

// A field's path ("reward.source.0.rule") and what has set it: "preset grpo", a file's path or "--set". Fields that
// have their default are not in it.
using ValueOrigins = std::map<std::string, std::string>;

// What a configuration is made of, the later over the earlier.
struct ConfigSources {
  std::string preset;                  // its name (core/config/origins/presets.h), or ""
  std::string file;                    // path, or ""
  std::vector<std::string> overrides;  // "path.to.field=value"
  Program program = Program::kPpo;     // that reads it
};

// What the file sets and only the preset's method has no use for, as paths (core/config/needs.h): a file of one's own
// serves with every preset. What would have no effect without the preset, too, is not among it, and what overrides set
// is never left aside: both are refused.
struct FieldAside {
  std::string path;
  std::string why;  // it has no effect
};
absl::StatusOr<std::vector<FieldAside>> LeftAside(const ConfigSources& sources);
// A line that says it, with the reasons; "" where nothing is left aside.
absl::StatusOr<std::string> DescribeLeftAside(const ConfigSources& sources);

// Of them all but for what is left aside, as LoadRunConfig does it; a field that is set takes away the one in whose
// place it is (core/config/alternatives.h). `defaults` come before all of them. An error names the preset where the
// value is the preset's.
absl::StatusOr<RunConfig> LoadRunConfig(const ConfigSources& sources, const std::string& base_folder,
                                        const RunConfig& defaults = RunConfig());

// Of each value the last that has said it.
absl::StatusOr<ValueOrigins> OriginsOf(const ConfigSources& sources);

// An error of a check, which begins with the field: where a preset has set that, with its name and what goes over it.
absl::Status WithOrigin(const absl::Status& error, const ValueOrigins& origins);

// INVALID_ARGUMENT where run_dir has its default, which each program makes of the time at which it starts: programs
// that are started one by one must be told.
absl::Status CheckSaysRunDir(const ValueOrigins& origins);

// INVALID_ARGUMENT names a field that says on which hosts the run is, or with `chooses_ports` at which ports its
// services listen, where `engine` ("Slurm", "Ray") chooses them: it would have no effect.
absl::Status CheckHostsAreChosen(const std::string& engine, bool chooses_ports, const ValueOrigins& origins);

// PrintRunConfig with a comment behind each value: where it is from, or that it is a default
// (core/config/resolving/recorded.h).
std::string PrintRunConfig(const RunConfig& config, const ValueOrigins& origins);

}  // namespace quartet
