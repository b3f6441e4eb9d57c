#include "core/rewards/remote/in_parts.h"

#include <algorithm>
#include <iterator>

namespace quartet {

std::vector<absl::StatusOr<Reward>> AskInParts(std::span<const Answer* const> answers,
                                               const std::function<Asked(std::span<const Answer* const>)>& ask) {
  std::vector<absl::StatusOr<Reward>> all;
  std::vector<std::span<const Answer* const>> left = {answers};  // the next one last
  absl::Status failed;
  while (!left.empty()) {
    const std::span<const Answer* const> part = left.back();
    left.pop_back();
    Asked asked = failed.ok() ? ask(part) : Asked{failed};
    if (asked.rewards.ok()) {
      std::ranges::move(*asked.rewards, std::back_inserter(all));
    } else if (asked.smaller == Asked::Smaller::kNone || part.size() == 1) {
      all.insert(all.end(), part.size(), asked.rewards.status());
      if (asked.smaller == Asked::Smaller::kNone) failed = asked.rewards.status();
    } else if (asked.smaller == Asked::Smaller::kHalves) {
      left.push_back(part.subspan(part.size() / 2));
      left.push_back(part.first(part.size() / 2));
    } else {
      for (size_t i = part.size(); i-- > 0;) left.push_back(part.subspan(i, 1));
    }
  }
  return all;
}

}  // namespace quartet
