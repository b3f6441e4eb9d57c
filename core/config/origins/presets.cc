#include "core/config/origins/presets.h"

#include <google/protobuf/text_format.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/logging.h"

namespace quartet {

const std::vector<Preset>& Presets() {
  static const std::vector<Preset> presets = {
#include "core/config/origins/presets.inc"
  };
  return presets;
}

absl::StatusOr<RunConfig> ReadPreset(std::string_view name) {
  std::string names;
  for (const Preset& preset : Presets()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(preset.name));
    if (preset.name != name) continue;
    RunConfig config;
    const bool parsed = google::protobuf::TextFormat::ParseFromString(std::string(preset.text), &config);
    QUARTET_CHECK(parsed) << "presets/" << preset.name << ".textproto";
    return config;
  }
  return absl::InvalidArgumentError(absl::StrCat("--preset is \"", std::string(name), "\"; there are: ", names));
}

std::string DescribePresets() {
  std::string text;
  for (const Preset& preset : Presets()) {
    std::string_view line = preset.text.substr(0, preset.text.find('\n'));
    line.remove_prefix(std::min(line.size(), line.find_first_not_of("# \n")));
    absl::StrAppendFormat(&text, "  %-14s %s\n", std::string(preset.name), std::string(line));
  }
  return text;
}

}  // namespace quartet
