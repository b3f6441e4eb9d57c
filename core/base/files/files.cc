#include "core/base/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files/fd.h"
#include "core/base/files/input_file.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

// What the operating system says, in the code that fits it.
absl::Status OsError(int error, absl::string_view doing, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", doing, " ", path));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  return ReadTextFile(path, std::numeric_limits<int64_t>::max());
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  constexpr size_t kMore = 1 << 16;
  QUARTET_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  std::string content;
  size_t filled = 0;
  // To its end, wherever that is by now: files of /proc say that they have no bytes.
  for (size_t wanted = 0, got = 0; got == wanted; filled += got) {
    if (std::max<uint64_t>(file.bytes(), filled) > static_cast<uint64_t>(max_bytes)) break;
    wanted = filled == 0 ? file.bytes() + kMore : kMore;
    content.resize(filled + wanted);
    QUARTET_ASSIGN_OR_RETURN(got, file.ReadAt(filled, wanted, content.data() + filled));
  }
  if (const uint64_t bytes = std::max<uint64_t>(file.bytes(), filled); bytes > static_cast<uint64_t>(max_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes, " bytes long; at most ", max_bytes, " are allowed"));
  }
  content.resize(filled);
  return content;
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
  Fd file;
  do {
    temporary = absl::StrCat(path, ".", RandomHexDigits(1));
    // Of the mode the umask leaves a part.
    file.Reset(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  } while (!file.is_open() && errno == EEXIST);
  if (!file.is_open()) return OsError(errno, "create a file beside", path);
  absl::Cleanup remove = [&temporary] { unlink(temporary.c_str()); };
  if (!WriteAll(file.get(), content)) return OsError(errno, "write", path);
  if (fsync(file.get()) != 0) return OsError(errno, "sync", path);
  file.Reset();
  if (rename(temporary.c_str(), path.c_str()) != 0) return OsError(errno, "rename a new file to", path);
  std::move(remove).Cancel();

  return SyncFolderOf(path);
}

absl::Status SyncFolder(const std::string& path) {
  const Fd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return OsError(errno, "open", path);
  // Not every file system can sync folders.
  if (fsync(folder.get()) != 0 && errno != EINVAL) return OsError(errno, "sync", path);
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
