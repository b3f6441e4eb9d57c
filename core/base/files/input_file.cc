#include "core/base/files/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

absl::Status InputError(int error, absl::string_view doing, const std::string& path) {
  const std::string reason = absl::StrCat("cannot ", doing, " ", path, ": ", strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(reason);
  return error == EACCES ? absl::PermissionDeniedError(reason) : absl::UnavailableError(reason);
}

}  // namespace

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  InputFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path);  // NONBLOCK: a pipe must not hang us
  if (!file.fd_.is_open()) return InputError(errno, "open", path);
  if (fstat(file.fd(), &file.info_) != 0) return InputError(errno, "look at", path);
  if (S_ISREG(file.info_.st_mode)) return file;
  return absl::InvalidArgumentError(
      absl::StrCat(path, S_ISDIR(file.info_.st_mode) ? " is a folder, not a regular file" : " is not a regular file"));
}

absl::StatusOr<size_t> InputFile::ReadAt(uint64_t offset, size_t size, void* to) const {
  constexpr size_t kAtOnce = size_t{1} << 30;  // more than 2 GiB the system does not read
  size_t filled = 0;
  while (filled < size) {
    const ssize_t n = pread(fd(), static_cast<char*>(to) + filled, std::min(size - filled, kAtOnce),
                            static_cast<off_t>(offset + filled));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return InputError(errno, "read", path_);
    if (n == 0) break;
    filled += static_cast<size_t>(n);
  }
  return filled;
}

}  // namespace quartet
