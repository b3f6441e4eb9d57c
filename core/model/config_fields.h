// One JSON object of a file that says what a model is, field by field, with errors that name the field. LibTorch-free.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"

namespace quartet {

// Files of real models are a few KiB.
inline constexpr int64_t kMaxConfigBytes = 8 << 20;
// No dimension is larger; products of two fit 64 bits with room to spare.
inline constexpr int64_t kMaxDimension = int64_t{1} << 28;

// A value as it stands in the file, cut to a length that fits a message.
inline std::string ShownValue(const nlohmann::json& value) { return CutJson(value, 80); }

// One JSON object of one file, or of options where `file` is empty. A null is not an absent key: transformers fills its
// default in for the latter alone.
class ConfigFields {
 public:
  ConfigFields(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  bool Has(const std::string& name) const { return object_.contains(name); }  // null or not

  // Null for an absent key and for a JSON null.
  const nlohmann::json* Find(const std::string& name) const {
    auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  absl::Status Error(const std::string& name, std::string_view allowed) const {
    auto it = object_.find(name);
    return absl::InvalidArgumentError(absl::StrCat(file_, file_.empty() ? "" : ": ", prefix_, name, " is ",
                                                   it == object_.end() ? "missing" : ShownValue(*it), "; ",
                                                   std::string(allowed)));
  }

  absl::StatusOr<int64_t> Integer(const std::string& name, int64_t min, int64_t max,
                                  std::optional<int64_t> fallback = std::nullopt) const {
    if (!Has(name) && fallback.has_value()) return *fallback;
    const nlohmann::json* value = Find(name);
    const std::string allowed = absl::StrCat("it must be an integer in [", min, ", ", max, "]");
    if (value == nullptr || !value->is_number_integer()) return Error(name, allowed);
    if (value->is_number_unsigned() && value->get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      return Error(name, allowed);
    }
    const int64_t number = value->get<int64_t>();
    if (number < min || number > max) return Error(name, allowed);
    return number;
  }

  absl::StatusOr<int64_t> Dimension(const std::string& name, std::optional<int64_t> fallback = std::nullopt) const {
    return Integer(name, 1, kMaxDimension, fallback);
  }

  absl::StatusOr<double> Number(const std::string& name, double min, double max, std::optional<double> fallback) const {
    if (!Has(name) && fallback.has_value()) return *fallback;
    const nlohmann::json* value = Find(name);
    const std::string allowed = absl::StrCat("it must be a number in [", min, ", ", max, "]");
    if (value == nullptr || !value->is_number()) return Error(name, allowed);
    const double number = value->get<double>();
    return number >= min && number <= max ? absl::StatusOr<double>(number) : Error(name, allowed);
  }

  // A factor that leaves what it is multiplied with a number that fp32 and bf16 hold.
  absl::StatusOr<double> Factor(const std::string& name, std::optional<double> fallback) const {
    return Number(name, 1e-6, 1e6, fallback);
  }

  // False where absent, the default of all of them, and where null.
  absl::StatusOr<bool> Boolean(const std::string& name) const {
    const nlohmann::json* value = Find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return Error(name, "it must be true or false");
    return value->get<bool>();
  }

  absl::StatusOr<std::string> String(const std::string& name, std::string_view fallback) const {
    if (!Has(name)) return std::string(fallback);
    const nlohmann::json* value = Find(name);
    if (value == nullptr || !value->is_string()) return Error(name, "it must be a string");
    return value->get<std::string>();
  }

  // An integer, or a list of integers; empty where absent.
  absl::StatusOr<std::vector<int64_t>> Ids(const std::string& name, int64_t vocab_size) const {
    std::vector<int64_t> ids;
    const nlohmann::json* value = Find(name);
    if (value == nullptr) return ids;
    const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
    for (const nlohmann::json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
        return Error(name, absl::StrCat("each id must be an integer in [0, ", vocab_size, "), the vocabulary"));
      }
      ids.push_back(id.get<int64_t>());
    }
    return ids;
  }

  const std::string& file() const { return file_; }

 private:
  const nlohmann::json& object_;
  const std::string file_;
  const std::string prefix_;
};

}  // namespace quartet
