// A run's configuration as the page lists it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quartet {

struct ConfigRow {
  std::string path, value;
  std::optional<std::string> by_default;  // of those that depend on no other field
  std::string origin;                     // "preset grpo", a file, "--set"; "": none was written down
  bool is_text = false;
  bool differs = false;  // from the default; of one without: somebody has set it
};

// Of the text that PrintRunConfig writes, origins in comments behind values.
std::vector<ConfigRow> ReadConfigRows(std::string_view text);

}  // namespace quartet
