// The parameters of a request, each read by its name.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/errors/shown.h"
#include "core/openai/api_error.h"

namespace quartet {

// A value in an error message.
inline absl::Status Refused(absl::string_view name, const nlohmann::ordered_json& value, absl::string_view allowed) {
  return ParameterError(name, absl::StrCat("is ", CutJson(value), "; allowed: ", allowed));
}

// Why what an answer has to be cannot be asked for.
inline constexpr char kDrawnFreely[] =
    "answers are drawn freely: trainers cannot compute the probabilities of what is drawn under a grammar";

// The parameters of a request. A null is a parameter that is not there.
class Parameters {
 public:
  using Json = nlohmann::ordered_json;

  // Errors have `place` before the names.
  explicit Parameters(const Json& object, std::string place = "") : object_(object), place_(std::move(place)) {}

  // The names of those that are there.
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& [name, value] : object_.items()) {
      if (!value.is_null()) names.insert(name);
    }
    return names;
  }

  // Null where it is absent.
  const Json* Find(const std::string& name) {
    offered_.insert(name);
    return Look(name);
  }

  // These leave `value` as it is where the parameter is absent.
  absl::Status Read(const std::string& name, bool* value) {
    const Json* found = Find(name);
    if (found == nullptr) return absl::OkStatus();
    if (!found->is_boolean()) return Refuse(name, *found, "true or false");
    *value = found->get<bool>();
    return absl::OkStatus();
  }
  absl::Status Read(const std::string& name, std::optional<float>* value) {
    const Json* found = Find(name);
    if (found == nullptr) return absl::OkStatus();
    if (!found->is_number()) return Refuse(name, *found, "a number");
    *value = found->get<float>();
    return absl::OkStatus();
  }
  absl::Status Read(const std::string& name, std::optional<int32_t>* value) {
    const Json* found = Find(name);
    if (found == nullptr) return absl::OkStatus();
    int32_t number = 0;
    if (!ToInt32(*found, &number)) return Refuse(name, *found, "a whole number of 32 bits");
    *value = number;
    return absl::OkStatus();
  }

  // A parameter that is not supported: only values that mean the same as none.
  absl::Status OnlyNeutral(const std::string& name, const std::vector<Json>& neutral,
                           absl::string_view why = "others are not supported") {
    tolerated_.insert(name);
    const Json* found = Look(name);
    if (found == nullptr) return absl::OkStatus();
    std::vector<std::string> allowed = {"null"};
    for (const Json& value : neutral) {
      if (*found == value) return absl::OkStatus();
      allowed.push_back(value.dump());
    }
    return Refuse(name, *found, absl::StrCat(absl::StrJoin(allowed, ", "), " (", why, ")"));
  }
  absl::Status Refuse(const std::string& name, const Json& value, absl::string_view allowed) const {
    return Refused(place_ + name, value, allowed);
  }
  // A parameter without influence on the answer.
  void Ignore(const std::string& name) { tolerated_.insert(name); }

  // That every parameter has been named in one of these ways. The error tells those that have an effect.
  absl::Status CheckAllKnown() const {
    for (const auto& [name, value] : object_.items()) {
      if (!offered_.contains(name) && !tolerated_.contains(name) && !value.is_null()) {
        return ParameterError(place_ + name, absl::StrCat("is not a parameter that is known here; allowed: ",
                                                          absl::StrJoin(offered_, ", ")));
      }
    }
    return absl::OkStatus();
  }

  static bool ToInt32(const Json& value, int32_t* number) {
    if (!value.is_number_integer()) return false;
    if (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int32_t>::max()) return false;
    const auto wide = value.get<int64_t>();
    if (wide < std::numeric_limits<int32_t>::min() || wide > std::numeric_limits<int32_t>::max()) return false;
    *number = static_cast<int32_t>(wide);
    return true;
  }

 private:
  const Json* Look(const std::string& name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  const nlohmann::ordered_json& object_;
  const std::string place_;
  std::set<std::string> offered_, tolerated_;
};

}  // namespace quartet
