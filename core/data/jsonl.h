// Reads JSONL: one JSON object a line. LibTorch-free.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

struct JsonlFile {
  std::string path;
  std::string option;  // of the configuration, whose value the path is; errors begin with it
};

struct JsonlKey {
  std::string name;
  std::string option;     // whose value the name is
  bool optional = false;  // absent from the record where a line lacks it
  bool list = false;      // a list is allowed, too
  std::string spared_by;  // a key: optional where that field is a list
};

struct Record {
  int line = 0;  // counted from 1
  // The asked-for keys alone, each in one of these.
  std::map<std::string, std::string> fields;
  std::map<std::string, nlohmann::json> lists;
};

// The fields `keys` of every line of the file, in order. A field is a string, or a number or boolean, which becomes its
// JSON text (a label 42 reads "42"), or a list where the key allows it. Blank lines are allowed at the end of the file
// only. INVALID_ARGUMENT names file, line and field, and the options that say so; a file without any record is
// INVALID_ARGUMENT too. NOT_FOUND says where relative paths start.
absl::StatusOr<std::vector<Record>> ReadJsonl(const JsonlFile& file, const std::vector<JsonlKey>& keys);

// The status with the file's option, its path and the line before the message.
absl::Status AtLine(const JsonlFile& file, int line, const absl::Status& status);

}  // namespace quartet
