// A file of records, one a line, that somebody goes on writing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quartet {

// One thread.
class FileTail {
 public:
  // Of a file that is read for the first time, no more than the last `most` bytes are: their first line may be a part.
  explicit FileTail(std::string path, int64_t most = std::numeric_limits<int64_t>::max())
      : path_(std::move(path)), most_(most) {}
  // What the file has got since it was read last: whole lines. Nothing where it is not there. Errors name the file;
  // what is no regular file is INVALID_ARGUMENT.
  absl::Status Read(std::string* lines);
  // Whether the last Read found that what had been read is in the file no more: another one has its name now, or it is
  // shorter. What that Read gave is from the beginning of the file.
  bool began_anew() const { return began_anew_; }

 private:
  std::string path_;
  int64_t most_;
  // Of the file that was read; the inode is 0 before there is one.
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int64_t read_ = 0;  // bytes
  bool began_anew_ = false;
};

// The lines that are JSON objects.
std::vector<nlohmann::json> Records(const std::string& lines);

}  // namespace quartet
