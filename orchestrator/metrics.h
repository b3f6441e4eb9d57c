// The numbers of one step, by name, in the order in which they were set.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quartet {

// One thread.
class Metrics {
 public:
  void Set(std::string name, double value) { values_.emplace_back(std::move(name), value); }
  // The last value set under `name`.
  std::optional<double> Get(std::string_view name) const {
    for (auto it = values_.rbegin(); it != values_.rend(); ++it) {
      if (it->first == name) return it->second;
    }
    return std::nullopt;
  }
  const std::vector<std::pair<std::string, double>>& values() const { return values_; }

 private:
  std::vector<std::pair<std::string, double>> values_;
};

}  // namespace quartet
