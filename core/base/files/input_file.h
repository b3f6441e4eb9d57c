// Files that users name, open for reading.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/files/fd.h"

namespace quartet {

// A regular file, closed at the end of its scope. Errors name the path and the operating system's reason. Reading is
// thread safe.
class InputFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE or, for what is no regular file (a pipe is not waited for),
  // INVALID_ARGUMENT.
  static absl::StatusOr<InputFile> Open(const std::string& path);
  // Takes over a descriptor, or -1 for none.
  explicit InputFile(int fd = -1, std::string path = "") : fd_(fd), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // As it was when it was opened by its path; so are its bytes.
  const struct stat& info() const { return info_; }
  uint64_t bytes() const { return static_cast<uint64_t>(info_.st_size); }
  int fd() const { return fd_.get(); }
  // The descriptor, from now on the caller's to close.
  int Release() { return fd_.Release(); }

  // Fills `to` with `size` bytes from `offset` on, or up to the end of the file; how many. UNAVAILABLE.
  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t size, void* to) const;

 private:
  Fd fd_;
  std::string path_;
  struct stat info_ = {};
};

}  // namespace quartet
