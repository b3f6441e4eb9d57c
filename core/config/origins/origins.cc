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
#include "core/config/alternatives.h"
#include "core/config/field_paths.h"
#include "core/config/needs.h"
#include "core/config/origins/presets.h"
#include "core/config/resolving/defaults.h"
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

// What of these overrides can be told without what they go over: a further element of somebody's list cannot, and has
// an effect wherever it is.
void ApplyAlone(const std::vector<std::string>& overrides, RunConfig* config) {
  for (const std::string& override : overrides) ApplyOverrides({override}, config).IgnoreError();
}

// The file's, without what is left aside.
absl::StatusOr<RecordedConfig> ReadFileOf(const ConfigSources& sources) {
  RecordedConfig file;
  if (sources.file.empty()) return file;
  QUARTET_ASSIGN_OR_RETURN(file, ReadRecordedConfig(sources.file));
  QUARTET_ASSIGN_OR_RETURN(const std::vector<FieldAside> aside, LeftAside(sources));
  for (const FieldAside& field : aside) {
    ClearPath(field.path, &file.set);
    ClearPath(field.path, &file.whole);
  }
  return file;
}

// That the file leaves something to the preset, unless both say the same: that of a run sets everything.
absl::Status CheckPresetHolds(const ConfigSources& sources, const RunConfig& file) {
  if (sources.preset.empty() || sources.file.empty()) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(const RunConfig preset, ReadPreset(sources.preset));
  RunConfig together = preset;
  MakeWayFor(file, &together);
  together.MergeFrom(file);
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
  std::vector<FieldAside> aside;
  if (sources.preset.empty() || sources.file.empty()) return aside;
  QUARTET_ASSIGN_OR_RETURN(const RunConfig preset, ReadPreset(sources.preset));
  QUARTET_ASSIGN_OR_RETURN(const RecordedConfig read, ReadRecordedConfig(sources.file));
  const RunConfig& file = read.set;
  RunConfig alone = file, together = preset;
  MakeWayFor(file, &together);
  together.MergeFrom(file);
  ApplyAlone(sources.overrides, &alone);
  ApplyAlone(sources.overrides, &together);
  const std::vector<const Need*> idle_anyway = FillDefaults(sources.program, &alone);
  for (const Need* need : FillDefaults(sources.program, &together)) {
    if (std::find(idle_anyway.begin(), idle_anyway.end(), need) == idle_anyway.end() &&
        !FirstSet(need->path, file).empty()) {
      aside.push_back({need->path, need->why(together)});
    }
  }
  return aside;
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
  RunConfig config = defaults;
  if (!sources.preset.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const RunConfig preset, ReadPreset(sources.preset));
    config.MergeFrom(preset);
  }
  QUARTET_ASSIGN_OR_RETURN(const RecordedConfig file, ReadFileOf(sources));
  RunConfig written = file.set;
  QUARTET_RETURN_IF_ERROR(CheckPresetHolds(sources, written));
  MakeWayFor(written, &config);
  config.MergeFrom(written);
  QUARTET_RETURN_IF_ERROR(ApplyOverrides(sources.overrides, &config));
  ApplyAlone(sources.overrides, &written);
  const auto resolve = [&]() -> absl::Status {
    RunConfig asked = config;
    // It is given the file of a whole run: only what is asked of it counts.
    if (sources.program == Program::kEvaluate) {
      asked.Clear();
      ApplyAlone(sources.overrides, &asked);
    }
    QUARTET_RETURN_IF_ERROR(CheckRead(sources.program, asked));
    ClearUnread(sources.program, &written);
    KeepRecordedDefaults(file, defaults, sources.program, &config);
    return ResolveRunConfig(&config, base_folder, sources.program, written);
  };
  const absl::Status resolved = resolve();
  if (resolved.ok() || sources.preset.empty()) return resolved.ok() ? absl::StatusOr<RunConfig>(config) : resolved;
  QUARTET_ASSIGN_OR_RETURN(const ValueOrigins origins, OriginsOf(sources));
  return WithOrigin(resolved, origins);
}

absl::StatusOr<ValueOrigins> OriginsOf(const ConfigSources& sources) {
  ValueOrigins origins;
  RunConfig config;
  std::map<std::string, std::string> before;
  const auto note = [&](const std::string& from, const auto& says) {
    std::map<std::string, std::string> now = FlatFields(config);
    Note(before, now, says, from, &origins);
    before = std::move(now);
  };
  if (!sources.preset.empty()) {
    QUARTET_ASSIGN_OR_RETURN(config, ReadPreset(sources.preset));
    note(absl::StrCat(kPresetOrigin, sources.preset), [](const auto&, const auto&) { return true; });
  }
  if (!sources.file.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const RecordedConfig read, ReadFileOf(sources));
    const RunConfig& file = read.set;
    MakeWayFor(file, &config);
    config.MergeFrom(file);
    // Also of what the preset says, too.
    const std::map<std::string, std::string> said = FlatFields(file);
    note(sources.file, [&said](const std::string& path, const std::string& value) {
      const auto found = said.find(path);
      return found != said.end() && found->second == value;
    });
  }
  QUARTET_RETURN_IF_ERROR(ApplyOverrides(sources.overrides, &config));
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
