#include "core/config/text/names_elsewhere.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace quartet {
namespace {

struct Row {
  std::string_view system, first, second, third;
};
constexpr Row kRows[] = {
#include "core/config/text/names_elsewhere.inc"
};
constexpr std::string_view kValues = "Values";

std::vector<std::string> Names(std::string_view cell) {
  if (cell == "–") return {};
  return absl::StrSplit(absl::string_view(cell.data(), cell.size()), ", ");
}

std::string Whose(std::string_view system) {
  const bool is_one = system.find(' ') == std::string_view::npos;
  return is_one ? absl::StrCat(std::string(system), "'s ") : "";
}

}  // namespace

const std::vector<NameElsewhere>& NamesElsewhere() {
  static const auto& names = *[] {
    auto* const all = new std::vector<NameElsewhere>();
    for (const Row& row : kRows) {
      if (row.system != kValues) all->push_back({row.system, Names(row.first), Names(row.second), row.third});
    }
    return all;
  }();
  return names;
}

const std::vector<ValueElsewhere>& ValuesElsewhere() {
  static const auto& values = *[] {
    auto* const all = new std::vector<ValueElsewhere>();
    for (const Row& row : kRows) {
      if (row.system == kValues) all->push_back({row.first, row.second, row.third});
    }
    return all;
  }();
  return values;
}

std::string MeantPath(std::string_view path) {
  for (const NameElsewhere& name : NamesElsewhere()) {
    if (std::find(name.there.begin(), name.there.end(), path) == name.there.end()) continue;
    return absl::StrCat("; ", Whose(name.system), std::string(path), " is ",
                        name.here.empty() ? "not here" : absl::StrCat(absl::StrJoin(name.here, ", "), " here"),
                        name.meaning.empty() ? "" : absl::StrCat(": ", std::string(name.meaning)));
  }
  const std::string group = absl::StrCat(std::string(path), ".");
  for (const NameElsewhere& name : NamesElsewhere()) {
    for (const std::string& there : name.there) {
      if (!absl::StartsWith(there, group) || name.here.empty()) continue;
      return absl::StrCat("; docs/migrating.md has the names of ", std::string(name.system), ": ", there, " is ",
                          name.here.front(), " here");
    }
  }
  return "";
}

std::string MeantValue(std::string_view error) {
  for (const ValueElsewhere& value : ValuesElsewhere()) {
    const std::string begin = absl::StrCat(std::string(value.field), ": \"", std::string(value.there), "\"");
    if (error.starts_with(begin)) return absl::StrCat("; it is \"", std::string(value.here), "\" here");
  }
  return "";
}

}  // namespace quartet
