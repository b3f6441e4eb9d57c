// A file that grows record by record and says when it cannot.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/files/fd.h"

namespace quartet {

// One thread. Whole records: each is one write, and after an error nothing of the failed record is left in the file,
// where that is possible. Who reads a file that grows takes what ends in a newline: a file system may show a write page
// by page.
class AppendFile {
 public:
  // Creates `path`; ALREADY_EXISTS where there is such a file.
  static absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path);
  // Goes on with a file that is there.
  static absl::StatusOr<std::unique_ptr<AppendFile>> Open(const std::string& path);

  // Hands `record` to the operating system. RESOURCE_EXHAUSTED where the disk or the quota is full; errors name the
  // file and the system's reason.
  absl::Status Append(std::string_view record);
  // Returns when what was appended is on disk.
  absl::Status Sync();

  const std::string& path() const { return path_; }

 private:
  AppendFile(std::string path, Fd file, int64_t size) : path_(std::move(path)), file_(std::move(file)), size_(size) {}
  std::string path_;
  Fd file_;
  int64_t size_;
};

}  // namespace quartet
