#include "core/service/ranks/group/lane_join.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/errors/shown.h"
#include "core/version/version.h"

namespace quartet {

LaneJoin JoinOf(const RankContext& context) {
  LaneJoin join;
  join.set_rank(context.rank);
  join.set_endpoint(context.endpoint);
  join.set_service(context.service);
  join.set_world_size(context.world_size);
  join.set_version(VersionText());
  join.mutable_configuration()->insert(context.configuration.begin(), context.configuration.end());
  return join;
}

absl::Status CheckIsAlike(const LaneJoin& join, const LaneJoin& own) {
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& what, const std::string& theirs, const std::string& ours) {
    if (theirs != ours) differences.push_back(absl::StrCat(what, " ", Cut(theirs), " instead of ", Cut(ours)));
  };
  compare("the service", join.service(), own.service());
  compare("the number of ranks", absl::StrCat(join.world_size()), absl::StrCat(own.world_size()));
  compare("the version", join.version(), own.version());
  if (differences.empty()) {
    std::map<std::string, std::pair<std::string, std::string>> fields;
    for (const auto& [path, value] : join.configuration()) fields[path].first = value;
    for (const auto& [path, value] : own.configuration()) fields[path].second = value;
    const auto shown = [](const std::string& value) { return value.empty() ? "unset" : value; };
    for (const auto& [path, values] : fields) compare(path, shown(values.first), shown(values.second));
  }
  if (differences.empty()) return absl::OkStatus();
  constexpr size_t kMostShown = 8;
  const size_t shown = std::min(differences.size(), kMostShown);
  const std::string more =
      differences.size() > shown ? absl::StrCat(", and ", differences.size() - shown, " more") : "";
  differences.resize(shown);
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", join.rank(), " (", join.endpoint(),
                   ") was started with another configuration than rank 0: ", absl::StrJoin(differences, ", "), more));
}

}  // namespace quartet
