// JSON from outside: parsed with a bounded depth, duplicate keys refused, errors that say where. LibTorch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/base/files/files.h"

namespace quartet {

inline constexpr int kMaxJsonDepth = 64;

// Parses one JSON value that fills `text` (white space around it is allowed). INVALID_ARGUMENT names `source`, line and
// column; `first_line` is the number of the text's first line in it. Objects and arrays may nest `max_depth` deep; an
// object with the same key twice is refused.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view source, int max_depth = kMaxJsonDepth,
                                         int64_t first_line = 1);

// The same with the keys of objects in the order of the text, for what is passed on as it is written: whole numbers
// beyond 64 bits, which no double holds, are refused.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, std::string_view source,
                                                        int max_depth = kMaxJsonDepth, int64_t first_line = 1);

// The same two, but what a number of 64 bits cannot hold (a whole number beyond 64 bits; in the ordered one, for rows
// of data, also one of more digits than a double has) is a binary value, of the number as it is written.
absl::StatusOr<nlohmann::json> ParseExactJson(std::string_view text, std::string_view source);
absl::StatusOr<nlohmann::ordered_json> ParseExactOrderedJson(std::string_view text, std::string_view source,
                                                             int max_depth = kMaxJsonDepth, int64_t first_line = 1);

// The number that a binary value of these is.
std::string ExactNumber(const nlohmann::json& value);
std::string ExactNumber(const nlohmann::ordered_json& value);
// One line of JSON in ASCII, such numbers as they were written.
std::string PrintExactJson(const nlohmann::json& value);
std::string PrintExactJson(const nlohmann::ordered_json& value);

// ReadTextFile (core/base/files/files.h), then ParseJson.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes, int max_depth = kMaxJsonDepth);

}  // namespace quartet
