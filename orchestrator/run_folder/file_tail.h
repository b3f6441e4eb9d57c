// A file of records, one a line, that somebody goes on writing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quartet {

// One thread.
class FileTail {
 public:
  explicit FileTail(std::string path) : path_(std::move(path)) {}
  // What the file has got since it was read last: whole lines. Nothing where it is not there. Errors name the file.
  absl::Status Read(std::string* lines);
  // Whether the last Read found that what had been read is in the file no more: another one has its name now, or it is
  // shorter. What that Read gave is from the beginning of the file.
  bool began_anew() const { return began_anew_; }

 private:
  std::string path_;
  // Of the file that was read; the inode is 0 before there is one.
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int64_t read_ = 0;  // bytes
  bool began_anew_ = false;
};

// The lines that are JSON objects.
std::vector<nlohmann::json> Records(const std::string& lines);

}  // namespace quartet
