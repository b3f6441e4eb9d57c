#include "core/config/text/field_names.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/config/text/names_elsewhere.h"

namespace quartet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Characters to insert, drop, replace, or swap with their neighbour (optimal string alignment).
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> distance(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = i + j;
        continue;
      }
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1,
                                 distance[i - 1][j - 1] + static_cast<size_t>(a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

// Of the messages below `message` that have a field of that name.
void FindPaths(absl::string_view name, const Descriptor& message, const std::string& path,
               std::vector<std::string>* paths) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.name() == name) paths->push_back(path.empty() ? "the top level" : path);
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    FindPaths(name, *field.message_type(), absl::StrCat(path, path.empty() ? "" : ".", field.name()), paths);
  }
}

std::string LastPart(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// Of names elsewhere whose last part is `name`: in `message`, or where they are.
std::string MeantByLastPart(const std::string& name, const Descriptor& message) {
  std::vector<std::string> places;
  bool is_somewhere = false;
  for (const NameElsewhere& elsewhere : NamesElsewhere()) {
    if (std::none_of(elsewhere.there.begin(), elsewhere.there.end(),
                     [&name](const std::string& there) { return LastPart(there) == name; })) {
      continue;
    }
    is_somewhere = true;
    for (const std::string& here : elsewhere.here) {
      const std::string field = LastPart(here);
      if (message.FindFieldByName(field) != nullptr) return absl::StrCat("; did you mean '", field, "'?");
      const size_t dot = here.rfind('.');
      const std::string place =
          absl::StrCat("'", field, "', a field of ", dot == std::string::npos ? "the top level" : here.substr(0, dot));
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    }
  }
  if (!places.empty()) return absl::StrCat("; did you mean ", absl::StrJoin(places, ", or "), "?");
  return is_somewhere ? "; what other systems mean by it is not there (docs/migrating.md)" : "";
}

}  // namespace

std::string MeantField(absl::string_view path, const Descriptor& message, const Descriptor& root) {
  const std::string elsewhere = MeantPath(std::string_view(path.data(), path.size()));
  const size_t dot = path.rfind('.');
  const bool is_group = dot == absl::string_view::npos;
  if (!elsewhere.empty() && !is_group) return elsewhere;
  const std::string name(is_group ? path : path.substr(dot + 1));
  std::vector<std::string> paths;
  FindPaths(name, root, "", &paths);
  if (!paths.empty()) return absl::StrCat("; it is a field of ", absl::StrJoin(paths, ", "), elsewhere);
  if (!elsewhere.empty()) return elsewhere;
  const std::string last = MeantByLastPart(name, message);
  if (!last.empty()) return last;
  std::string nearest;
  // Of three characters one may be wrong.
  size_t least = name.size() / 3 + 1;
  for (int i = 0; i < message.field_count(); ++i) {
    const size_t distance = EditDistance(name, message.field(i)->name());
    if (distance >= least) continue;
    least = distance;
    nearest = message.field(i)->name();
  }
  return nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
}

}  // namespace quartet
