#include "core/run_folder/records/append_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

absl::Status SystemError(int error, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(absl::StrCat(message, "; free some space or choose another run_dir"));
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case ENOENT:
      return absl::NotFoundError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<AppendFile>> AppendFile::Create(const std::string& path) {
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return SystemError(errno, absl::StrCat("cannot create ", path));
  return std::unique_ptr<AppendFile>(new AppendFile(path, std::move(file), 0));
}

absl::StatusOr<std::unique_ptr<AppendFile>> AppendFile::Open(const std::string& path) {
  Fd file(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));  // NONBLOCK: a pipe must not hang us
  if (!file.is_open()) return SystemError(errno, absl::StrCat("cannot open ", path));
  const off_t size = lseek(file.get(), 0, SEEK_END);
  if (size < 0) return SystemError(errno, absl::StrCat("cannot find the end of ", path));
  return std::unique_ptr<AppendFile>(new AppendFile(path, std::move(file), size));
}

absl::Status AppendFile::Append(std::string_view record) {
  if (!WriteAll(file_.get(), record)) {
    const int error = errno;
    // Best effort: the error is reported either way.
    if (ftruncate(file_.get(), size_) == 0) lseek(file_.get(), size_, SEEK_SET);
    return SystemError(error, absl::StrCat("cannot write ", record.size(), " bytes to ", path_));
  }
  size_ += static_cast<int64_t>(record.size());
  return absl::OkStatus();
}

absl::Status AppendFile::Sync() {
  if (fdatasync(file_.get()) == 0) return absl::OkStatus();
  return SystemError(errno, absl::StrCat("cannot sync ", path_));
}

}  // namespace quartet
