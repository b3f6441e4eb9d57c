#include "core/config/origins/origins.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/config/field_paths.h"
#include "core/config/needs.h"
#include "core/config/origins/presets.h"
#include "core/config/resolving/defaults.h"
#include "core/config/resolving/layers.h"
#include "core/config/resolving/recorded.h"
#include "core/config/run_config.h"
#include "core/config/services.h"

namespace quartet {
namespace {

constexpr absl::string_view kPresetOrigin = "preset ";
// By default it is another each time.
constexpr absl::string_view kOwnOfARun = "run_dir";

// `from` is the origin of what `now` has and `before` has not, or not so, and of what `says` holds for; what is not in
// `now` has none.
void Note(const std::map<std::string, std::string>& before, const std::map<std::string, std::string>& now,
          const std::function<bool(const std::string& path, const std::string& value)>& says, const std::string& from,
          ValueOrigins* origins) {
  std::erase_if(*origins, [&now](const auto& origin) { return !now.contains(origin.first); });
  for (const auto& [path, value] : now) {
    const auto was = before.find(path);
    if (was == before.end() || was->second != value || says(path, value)) (*origins)[path] = from;
  }
}

// Whether an override names `path`, or a list or group that it is in.
bool IsSetBy(const std::vector<std::string>& overrides, const std::string& path) {
  return std::any_of(overrides.begin(), overrides.end(), [&path](const std::string& override) {
    absl::string_view rest = path;
    return absl::ConsumePrefix(&rest, override.substr(0, override.find('='))) &&
           (rest.empty() || absl::StartsWith(rest, "."));
  });
}

// All of them, with what is left aside.
absl::StatusOr<ConfigLayers> ReadLayers(const ConfigSources& sources) {
  ConfigLayers layers = {.overrides = sources.overrides};
  if (!sources.preset.empty()) {
    QUARTET_ASSIGN_OR_RETURN(layers.preset, ReadPreset(sources.preset));
  }
  if (!sources.file.empty()) {
    QUARTET_ASSIGN_OR_RETURN(layers.file, ReadRecordedConfig(sources.file));
  }
  return layers;
}

std::vector<FieldAside> LeftAsideOf(const ConfigLayers& layers, Program program) {
  RunConfig alone = layers.file.set, together = layers.preset;
  LayOver(layers.file.set, &together);
  ApplyAlone(layers.overrides, &alone);
  ApplyAlone(layers.overrides, &together);
  const std::vector<const Need*> idle_anyway = FillDefaults(program, &alone);
  std::vector<FieldAside> aside;
  for (const Need* need : FillDefaults(program, &together)) {
    if (std::ranges::find(idle_anyway, need) == idle_anyway.end() && !FirstSet(need->path, layers.file.set).empty()) {
      aside.push_back({need->path, need->why(together)});
    }
  }
  return aside;
}

// Without what is left aside.
absl::StatusOr<ConfigLayers> LayersOf(const ConfigSources& sources) {
  QUARTET_ASSIGN_OR_RETURN(ConfigLayers layers, ReadLayers(sources));
  for (const FieldAside& field : LeftAsideOf(layers, sources.program)) {
    for (RunConfig* file : {&layers.file.set, &layers.file.whole}) {
      ClearPath(field.path, file);
      // Nor has a service that there is not a place; but others' entries stay where overrides mean them.
      constexpr std::string_view kServices = "services.", kPlacement = "placement";
      if (!field.path.starts_with(kServices)) continue;
      if (std::ranges::any_of(sources.overrides, [&](const std::string& one) { return one.starts_with(kPlacement); })) {
        continue;
      }
      const std::string service = field.path.substr(kServices.size());
      auto* const entries = file->mutable_placement();
      entries->erase(std::remove_if(entries->begin(), entries->end(),
                                    [&](const GpuPlacement& entry) { return entry.service() == service; }),
                     entries->end());
    }
  }
  return layers;
}

// That the file leaves something to the preset, unless both say the same: that of a run sets everything.
absl::Status CheckPresetHolds(const ConfigSources& sources, const ConfigLayers& layers) {
  if (sources.preset.empty() || sources.file.empty()) return absl::OkStatus();
  const RunConfig &preset = layers.preset, &file = layers.file.set;
  RunConfig together = preset;
  LayOver(file, &together);
  const std::map<std::string, std::string> by_file = FlatFields(file), by_both = FlatFields(together);
  bool differs = false, holds = false;
  for (const auto& [path, value] : FlatFields(preset)) {
    const auto found = by_both.find(path);
    holds |= found != by_both.end() && !by_file.contains(path);
    differs |= found == by_both.end() || found->second != value;
  }
  if (!holds && differs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--preset is ", sources.preset, ", and has no effect: ", sources.file,
        " sets all that it sets, as the run.textproto of a run does; give the file that the run was started with, or "
        "set fields with --set"));
  }
  // What else it says is of its method.
  const std::string &its = preset.algorithm().advantage_estimator(), &own = file.algorithm().advantage_estimator();
  if (its.empty() || own.empty() || its == own || IsSetBy(sources.overrides, "algorithm.advantage_estimator")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--preset is ", sources.preset, ", whose algorithm.advantage_estimator is \"", its, "\", and ",
                   sources.file, " sets \"", own, "\": leave one of them out, or set the field with --set"));
}

}  // namespace

absl::StatusOr<std::vector<FieldAside>> LeftAside(const ConfigSources& sources) {
  QUARTET_ASSIGN_OR_RETURN(const ConfigLayers layers, ReadLayers(sources));
  return LeftAsideOf(layers, sources.program);
}

absl::StatusOr<std::string> DescribeLeftAside(const ConfigSources& sources) {
  QUARTET_ASSIGN_OR_RETURN(const std::vector<FieldAside> aside, LeftAside(sources));
  std::string text;
  for (size_t i = 0; i < aside.size(); ++i) {
    const bool same = i > 0 && aside[i - 1].why == aside[i].why;
    if (i > 0) absl::StrAppend(&text, same ? ", " : absl::StrCat(" (", aside[i - 1].why, "); "));
    absl::StrAppend(&text, aside[i].path);
  }
  if (aside.empty()) return text;
  return absl::StrCat("with preset ", sources.preset, " left aside of ", sources.file, ": ", text, " (",
                      aside.back().why, ")");
}

absl::StatusOr<RunConfig> LoadRunConfig(const ConfigSources& sources, const std::string& base_folder,
                                        const RunConfig& defaults) {
  QUARTET_ASSIGN_OR_RETURN(ConfigLayers layers, LayersOf(sources));
  layers.defaults = defaults;
  QUARTET_RETURN_IF_ERROR(CheckPresetHolds(sources, layers));
  absl::StatusOr<RunConfig> config = LoadRunConfig(layers, base_folder, sources.program);
  if (config.ok() || sources.preset.empty()) return config;
  QUARTET_ASSIGN_OR_RETURN(const ValueOrigins origins, OriginsOf(sources));
  return WithOrigin(config.status(), origins);
}

absl::StatusOr<ValueOrigins> OriginsOf(const ConfigSources& sources) {
  QUARTET_ASSIGN_OR_RETURN(const ConfigLayers layers, LayersOf(sources));
  ValueOrigins origins;
  RunConfig config;
  std::map<std::string, std::string> before;
  const auto note = [&](const std::string& from, const auto& says) {
    std::map<std::string, std::string> now = FlatFields(config);
    Note(before, now, says, from, &origins);
    before = std::move(now);
  };
  config = layers.preset;
  note(absl::StrCat(kPresetOrigin, sources.preset), [](const auto&, const auto&) { return true; });
  LayOver(layers.file.set, &config);
  // Also of what the preset says, too.
  note(sources.file, [said = FlatFields(layers.file.set)](const std::string& path, const std::string& value) {
    const auto found = said.find(path);
    return found != said.end() && found->second == value;
  });
  QUARTET_RETURN_IF_ERROR(ApplyOverrides(layers.overrides, &config));
  note("--set", [&sources](const std::string& path, const auto&) { return IsSetBy(sources.overrides, path); });
  return origins;
}

absl::Status WithOrigin(const absl::Status& error, const ValueOrigins& origins) {
  const std::string message(error.message());
  const std::string field = message.substr(0, message.find_first_of(": "));
  const auto origin = origins.find(field);
  if (origin == origins.end() || !absl::StartsWith(origin->second, kPresetOrigin)) return error;
  return absl::Status(error.code(),
                      absl::StrCat(message, "; ", origin->second, " says it: the file's ", field, " or --set=", field,
                                   "=VALUE goes over that, and --set=", field, "= unsets it"));
}

absl::Status CheckSaysRunDir(const ValueOrigins& origins) {
  if (origins.count("run_dir") > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "run_dir is not set; orchestrator and trainers that are started one by one write to the same folder: set it in "
      "the file that all of them are given, or by --set=run_dir=FOLDER for each");
}

absl::Status CheckHostsAreChosen(const std::string& engine, bool chooses_ports, const ValueOrigins& origins) {
  const auto refuse = [&](const std::string& field, const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is set, but it is ", engine, " that chooses ", what, "; leave it out"));
  };
  if (origins.count("cluster.node_names.0") > 0) return refuse("cluster.node_names", "the hosts");
  if (!chooses_ports) return absl::OkStatus();
  for (const std::string& service : kServiceNames) {
    const std::string listen = absl::StrCat("services.", service, ".listen");
    if (origins.count(listen) > 0) return refuse(listen, "the host and the port");
  }
  return absl::OkStatus();
}

std::string PrintRunConfig(const RunConfig& config, const ValueOrigins& origins) {
  // One line a value, or "name {" or "}": the path of each follows from those above it. An element of a list has its
  // place in the path.
  std::vector<std::string> path;
  std::vector<const google::protobuf::Descriptor*> messages = {RunConfig::descriptor()};
  std::map<std::string, int> elements;
  const auto origin_of = [&](const std::string& name) {
    const std::string full = absl::StrJoin(path, ".") + (path.empty() ? "" : ".") + name;
    const auto single = origins.find(full);
    if (single != origins.end()) return single;
    return origins.find(absl::StrCat(full, ".", elements[full]++));
  };
  std::string out;
  const std::string text = PrintRunConfig(config);
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    absl::string_view content = absl::StripLeadingAsciiWhitespace(line);
    absl::StrAppend(&out, line);
    if (content == "}") {
      path.pop_back();
      messages.pop_back();
    } else if (absl::ConsumeSuffix(&content, " {")) {
      const google::protobuf::FieldDescriptor* field = messages.back()->FindFieldByName(std::string(content));
      messages.push_back(field->message_type());
      path.emplace_back(content);
      if (field->is_repeated()) absl::StrAppend(&path.back(), ".", elements[absl::StrJoin(path, ".")]++);
    } else {
      const std::string name(content.substr(0, content.find(':')));
      const auto origin = origin_of(name);
      if (origin != origins.end()) {
        absl::StrAppend(&out, "  # ", origin->second);
      } else if (!path.empty() || name != kOwnOfARun) {
        absl::StrAppend(&out, DefaultMark(content.substr(name.size() + 2)));
      }
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace quartet
