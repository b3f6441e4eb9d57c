// Names of options in configurations.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace quartet {

// The value that `name` stands for; INVALID_ARGUMENT with all names that are allowed where it is none of them. `what`
// is said of the option in the error, for example "KL estimator".
template <typename Value, size_t n>
absl::StatusOr<Value> ParseOptionName(std::string_view what, std::string_view name,
                                      const std::pair<std::string_view, Value> (&names)[n]) {
  std::string allowed;
  for (const auto& [candidate, value] : names) {
    if (candidate == name) return value;
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", std::string(candidate));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(what), " \"", std::string(name), "\" is not known; allowed: ", allowed));
}

}  // namespace quartet
