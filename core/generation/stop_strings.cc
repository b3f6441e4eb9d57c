#include "core/generation/stop_strings.h"

#include <algorithm>
#include <utility>

namespace quartet {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)), nodes_(1) {
  // Shorter nodes first: Next is asked of them when a longer one is made.
  std::vector<int32_t> ends(strings_.size(), 0);
  size_t longest = 0;
  for (const std::string& s : strings_) longest = std::max(longest, s.size());
  for (size_t depth = 0; depth < longest; ++depth) {
    for (size_t i = 0; i < strings_.size(); ++i) {
      const std::string& s = strings_[i];
      if (depth >= s.size()) continue;
      const int32_t parent = ends[i];
      const auto [edge, is_new] = edges_.try_emplace(Edge(parent, s[depth]), static_cast<int32_t>(nodes_.size()));
      ends[i] = edge->second;
      if (is_new) {
        const int32_t suffix = parent == kStart ? kStart : Next(nodes_[parent].suffix, s[depth]);
        nodes_.push_back({.depth = static_cast<int32_t>(depth) + 1, .suffix = suffix, .string = nodes_[suffix].string});
      }
      Node& node = nodes_[ends[i]];
      const auto string = static_cast<int32_t>(i);
      if (depth + 1 == s.size() && (node.string < 0 || string < node.string)) node.string = string;
    }
  }
}

StopStrings::State StopStrings::Next(State state, char byte) const {
  for (;; state = nodes_[state].suffix) {
    const auto edge = edges_.find(Edge(state, byte));
    if (edge != edges_.end()) return edge->second;
    if (state == kStart) return kStart;
  }
}

}  // namespace quartet
