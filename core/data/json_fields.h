// The fields of JSON files that this project's own programs write. LibTorch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace quartet {

// Fields that must be there, read by their kind; of what is wrong the first is kept, and the value of a wrong field is
// 0, "" or empty. One thread.
class JsonFields {
 public:
  // Errors begin with `path`.
  explicit JsonFields(std::string path) : path_(std::move(path)) {}

  // INVALID_ARGUMENT: what is wrong, what stands there and what is allowed.
  const absl::Status& status() const { return status_; }
  void Fail(const std::string& what);
  // `value` is null where there is none.
  void Fail(const std::string& field, const nlohmann::json* value, const std::string& allowed);

  // Null where there is none, which is wrong.
  const nlohmann::json* Get(const nlohmann::json& object, const std::string& field, const std::string& allowed);
  const nlohmann::json& Object(const nlohmann::json& object, const std::string& field);
  const nlohmann::json& Array(const nlohmann::json& object, const std::string& field);
  std::string Text(const nlohmann::json& object, const std::string& field);
  int64_t Count(const nlohmann::json& object, const std::string& field, int64_t least = 0);
  double Number(const nlohmann::json& object, const std::string& field, std::optional<double> least = std::nullopt);
  // Of HashText (core/base/hash_text.h).
  uint64_t Hash(const nlohmann::json& object, const std::string& field);

  // Values, or elements, of the field `field`.
  std::string AsText(const nlohmann::json& value, const std::string& field);
  int64_t AsCount(const nlohmann::json& value, const std::string& field, int64_t least = 0);
  uint64_t AsHash(const nlohmann::json& value, const std::string& field);

 private:
  // The field, of the kind of `empty`, or that.
  const nlohmann::json& Like(const nlohmann::json* empty, const nlohmann::json& object, const std::string& field,
                             const std::string& allowed);

  const std::string path_;
  absl::Status status_;
};

}  // namespace quartet
