#include "core/config/origins/origins.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/config/defaults.h"
#include "core/config/field_paths.h"
#include "core/config/needs.h"
#include "core/config/origins/presets.h"
#include "core/config/run_config.h"
#include "core/config/services.h"

namespace quartet {
namespace {

// `from` is the origin of what `now` has and `before` has not, or not so.
void Note(const std::map<std::string, std::string>& before, const std::map<std::string, std::string>& now,
          const std::string& from, ValueOrigins* origins) {
  for (const auto& [path, value] : now) {
    const auto was = before.find(path);
    if (was == before.end() || was->second != value) (*origins)[path] = from;
  }
}

// What has no effect in `config` once defaults are filled in.
std::vector<const Need*> IdleIn(RunConfig config) { return FillDefaults(&config); }

// What of these overrides can be told without what they go over: a further element of somebody's list cannot, and has
// an effect wherever it is.
void ApplyAlone(const std::vector<std::string>& overrides, RunConfig* config) {
  for (const std::string& override : overrides) ApplyOverrides({override}, config).IgnoreError();
}

// The file's, without what is left aside.
absl::StatusOr<RunConfig> ReadFileOf(const ConfigSources& sources) {
  RunConfig file;
  if (sources.file.empty()) return file;
  QUARTET_RETURN_IF_ERROR(ReadConfigFile(sources.file, &file));
  QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> aside, LeftAside(sources));
  for (const std::string& path : aside) ClearPath(path, &file);
  return file;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> LeftAside(const ConfigSources& sources) {
  std::vector<std::string> aside;
  if (sources.preset.empty() || sources.file.empty()) return aside;
  QUARTET_ASSIGN_OR_RETURN(const RunConfig preset, ReadPreset(sources.preset));
  RunConfig file;
  QUARTET_RETURN_IF_ERROR(ReadConfigFile(sources.file, &file));
  RunConfig alone = file, together = preset;
  together.MergeFrom(file);
  ApplyAlone(sources.overrides, &alone);
  ApplyAlone(sources.overrides, &together);
  const std::vector<const Need*> idle_anyway = IdleIn(alone);
  for (const Need* need : IdleIn(together)) {
    if (std::find(idle_anyway.begin(), idle_anyway.end(), need) == idle_anyway.end() &&
        !FirstSet(need->path, file).empty()) {
      aside.push_back(need->path);
    }
  }
  return aside;
}

absl::StatusOr<RunConfig> LoadRunConfig(const ConfigSources& sources, const std::string& base_folder,
                                        const RunConfig& defaults) {
  RunConfig config = defaults;
  if (!sources.preset.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const RunConfig preset, ReadPreset(sources.preset));
    config.MergeFrom(preset);
  }
  QUARTET_ASSIGN_OR_RETURN(RunConfig written, ReadFileOf(sources));
  config.MergeFrom(written);
  QUARTET_RETURN_IF_ERROR(ApplyOverrides(sources.overrides, &config));
  ApplyAlone(sources.overrides, &written);
  QUARTET_RETURN_IF_ERROR(ResolveRunConfig(&config, base_folder, written));
  return config;
}

absl::StatusOr<ValueOrigins> OriginsOf(const ConfigSources& sources) {
  ValueOrigins origins;
  RunConfig config;
  std::map<std::string, std::string> before;
  const auto note = [&](const std::string& from) {
    std::map<std::string, std::string> now = FlatFields(config);
    Note(before, now, from, &origins);
    before = std::move(now);
  };
  if (!sources.preset.empty()) {
    QUARTET_ASSIGN_OR_RETURN(config, ReadPreset(sources.preset));
    note("preset " + sources.preset);
  }
  if (!sources.file.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const RunConfig file, ReadFileOf(sources));
    config.MergeFrom(file);
    note(sources.file);
  }
  QUARTET_RETURN_IF_ERROR(ApplyOverrides(sources.overrides, &config));
  note("--set");
  return origins;
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
      const auto origin = origin_of(std::string(content.substr(0, content.find(':'))));
      if (origin != origins.end()) absl::StrAppend(&out, "  # ", origin->second);
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace quartet
