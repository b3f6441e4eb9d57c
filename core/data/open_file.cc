#include "core/data/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet {

absl::StatusOr<int> OpenRegularFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // NONBLOCK: a pipe must not hang us
  if (fd < 0) {
    const std::string reason = absl::StrCat(path, ": cannot be opened: ", strerror(errno));
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(reason);
    if (errno == EACCES) return absl::PermissionDeniedError(reason);
    return absl::UnavailableError(reason);
  }
  struct stat info;
  absl::Status status;
  if (fstat(fd, &info) != 0) {
    status = absl::UnavailableError(absl::StrCat(path, ": fstat: ", strerror(errno)));
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(
        absl::StrCat(path, S_ISDIR(info.st_mode) ? ": is a folder, not a regular file" : ": not a regular file"));
  }
  if (status.ok()) return fd;
  close(fd);
  return status;
}

}  // namespace quartet
