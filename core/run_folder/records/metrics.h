// The numbers of one step, by name, in the order in which they were set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quartet {

// One thread.
class Metrics {
 public:
  // In the place of the value that `name` had, if it had one.
  void Set(std::string_view name, double value) {
    const auto found = Find(name);
    if (found == values_.end()) {
      values_.emplace_back(name, value);
    } else {
      values_[static_cast<size_t>(found - values_.begin())].second = value;
    }
  }
  std::optional<double> Get(std::string_view name) const {
    const auto found = Find(name);
    return found == values_.end() ? std::nullopt : std::optional<double>(found->second);
  }
  const std::vector<std::pair<std::string, double>>& values() const { return values_; }

 private:
  std::vector<std::pair<std::string, double>>::const_iterator Find(std::string_view name) const {
    return std::find_if(values_.begin(), values_.end(), [name](const auto& value) { return value.first == name; });
  }
  std::vector<std::pair<std::string, double>> values_;
};

}  // namespace quartet
