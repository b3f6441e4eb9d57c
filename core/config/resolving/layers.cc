#include "core/config/resolving/layers.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/alternatives.h"
#include "core/config/conditions.h"
#include "core/config/programs.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "core/config/text/text_override.h"

namespace quartet {
namespace {

// That services.device, which --set has changed, is some service's: a configuration that a run has written says each
// service's own.
absl::Status CheckDeviceOfAll(const RunConfig& c) {
  std::vector<std::string> own;
  for (const std::string& service : kServiceNames) {
    const std::string& device = PlacementOf(c, service).device();
    if (device.empty() || device == c.services().device()) return absl::OkStatus();
    own.push_back(absl::StrCat("services.", service, ".device"));
  }
  return NoEffect("services.device", absl::StrCat("each service says its own; set ", absl::StrJoin(own, ", ")));
}

}  // namespace

void LayOver(const RunConfig& above, RunConfig* config) {
  MakeWayFor(above, config);
  config->MergeFrom(above);
}

absl::Status ApplyOverrides(const std::vector<std::string>& overrides, RunConfig* config) {
  RunConfig alone;
  for (const std::string& override : overrides) SetFieldsFromTexts({override}, &alone).IgnoreError();
  MakeWayFor(alone, config);
  QUARTET_RETURN_IF_ERROR(SetFieldsFromTexts(overrides, config));
  for (const std::string& override : overrides) {
    if (absl::StartsWith(override, "services.device=")) return CheckDeviceOfAll(*config);
  }
  return absl::OkStatus();
}

void ApplyAlone(const std::vector<std::string>& overrides, RunConfig* config) {
  for (const std::string& override : overrides) ApplyOverrides({override}, config).IgnoreError();
}

absl::StatusOr<RunConfig> LoadRunConfig(const ConfigLayers& layers, const std::string& base_folder, Program program) {
  RunConfig config = layers.defaults, written = layers.file.set;
  config.MergeFrom(layers.preset);
  LayOver(layers.file.set, &config);
  QUARTET_RETURN_IF_ERROR(ApplyOverrides(layers.overrides, &config));
  ApplyAlone(layers.overrides, &written);
  RunConfig asked = config;
  if (program == Program::kEvaluate) {
    asked.Clear();
    ApplyAlone(layers.overrides, &asked);
  }
  QUARTET_RETURN_IF_ERROR(CheckRead(program, asked));
  ClearUnread(program, &written);
  KeepRecordedDefaults(layers.file, layers.defaults, program, &config);
  QUARTET_RETURN_IF_ERROR(ResolveRunConfig(&config, base_folder, program, written));
  return config;
}

}  // namespace quartet
