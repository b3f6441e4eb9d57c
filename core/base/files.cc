#include "core/base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quartet {
namespace {

// What the operating system says, in the code that fits it.
absl::Status OsError(int error, absl::string_view doing, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", doing, " ", path));
}

absl::Status WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = write(fd, content.data(), content.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return OsError(errno, "write", path);
    }
    content.remove_prefix(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // NONBLOCK: a pipe must not hang us
  if (fd < 0) return OsError(errno, "open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return OsError(errno, "look at", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, S_ISDIR(info.st_mode) ? " is a folder, not a regular file" : " is not a regular file"));
  }
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0) {
      if (errno == EINTR) continue;
      return OsError(errno, "read", path);
    }
    if (n == 0) return content;
    content.append(buffer, n);
  }
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || (info.st_mode & 077) == 0) return ReadFile(path);
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s may be read by others than its owner (mode %04o): chmod 600 %s", path, info.st_mode & 07777, path));
}

absl::Status AtomicWriteFile(const std::string& path, std::string_view content, int mode) {
  // Beside `path`: a rename is atomic only within one file system.
  std::string temporary;
  int fd = -1;
  std::random_device random;
  do {
    temporary = absl::StrCat(path, ".", absl::Hex(random(), absl::kZeroPad8));
    fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);  // of which the umask leaves a part
  } while (fd < 0 && errno == EEXIST);
  if (fd < 0) return OsError(errno, "create a file beside", path);
  absl::Cleanup remove = [&temporary] { unlink(temporary.c_str()); };
  {
    absl::Cleanup close_fd = [fd] { close(fd); };
    if (absl::Status s = WriteAll(fd, content, path); !s.ok()) return s;
    if (fsync(fd) != 0) return OsError(errno, "sync", path);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return OsError(errno, "rename a new file to", path);
  std::move(remove).Cancel();

  return SyncFolderOf(path);
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return OsError(errno, "open", path);
  absl::Cleanup close_folder = [fd] { close(fd); };
  // Not every file system can sync folders.
  if (fsync(fd) != 0 && errno != EINVAL) return OsError(errno, "sync", path);
  return absl::OkStatus();
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return SyncFolder(parent.empty() ? "." : parent.string());
}

absl::Status MakeDirs(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return OsError(error.value(), "create the folder", path);
  if (!std::filesystem::is_directory(path, error)) return OsError(ENOTDIR, "create the folder", path);
  return absl::OkStatus();
}

std::string ResolveUserPath(std::string_view path) {
  if (path.empty()) return "";
  std::filesystem::path result(path);
  if (result.is_relative()) {
    const char* user_folder = getenv("BUILD_WORKING_DIRECTORY");
    std::error_code ignored;
    result = (user_folder != nullptr && *user_folder != '\0' ? std::filesystem::path(user_folder)
                                                             : std::filesystem::current_path(ignored)) /
             result;
  }
  std::string resolved = result.lexically_normal().string();
  while (resolved.size() > 1 && resolved.back() == '/') resolved.pop_back();
  return resolved;
}

std::string ExecutableFolder() {
  char buffer[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", buffer, sizeof(buffer));
  if (n <= 0) return ".";
  return std::filesystem::path(std::string(buffer, n)).parent_path().string();
}

}  // namespace quartet
