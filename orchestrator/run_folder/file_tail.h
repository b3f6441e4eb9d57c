// A file of records, one a line, that somebody goes on writing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quartet {

class FileTail {
 public:
  explicit FileTail(std::string path) : path_(std::move(path)) {}
  // What the file has got since it was read last: whole lines. Nothing where it is not there.
  absl::Status Read(std::string* lines);

 private:
  std::string path_;
  int64_t read_ = 0;  // bytes
};

// The lines that are JSON objects.
std::vector<nlohmann::json> Records(const std::string& lines);

}  // namespace quartet
