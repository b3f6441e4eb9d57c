#include "core/run_folder/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quartet {
namespace {

std::string FirstLine(int fd) {
  char text[512];
  const ssize_t size = pread(fd, text, sizeof(text), 0);
  std::string line(text, size > 0 ? static_cast<size_t>(size) : 0);
  line.resize(std::min(line.find('\n'), line.size()));
  return line;
}

}  // namespace

std::optional<std::string> RunLock::HolderOf(const std::string& run_dir) {
  // NONBLOCK: a pipe of that name must not hang us.
  const int fd = open(absl::StrCat(run_dir, "/", kRunLockName).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == EACCES) return "not known: the run is of another user";
  if (fd < 0) return std::nullopt;
  std::optional<std::string> holder;
  int result;
  do {
    result = flock(fd, LOCK_SH | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) holder = FirstLine(fd);
  close(fd);
  return holder;
}

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::Take(const std::string& run_dir) {
  const std::string path = absl::StrCat(run_dir, "/", kRunLockName);
  // Closed in programs that are started: a service that outlives the orchestrator does not hold its lock.
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::unique_ptr<RunLock> lock(new RunLock(fd));
  // One that was made for others to read. It may be somebody else's who lets this user write it.
  if (struct stat info; fstat(fd, &info) == 0 && info.st_uid == geteuid()) fchmod(fd, 0600);
  int result;
  do {
    result = flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    const std::string holder = FirstLine(fd);
    return absl::AbortedError(absl::StrCat("run_dir ", run_dir, " is in use by another orchestrator",
                                           holder.empty() ? "" : absl::StrCat(" (", holder, ")"),
                                           "; end it first, or give another run_dir"));
  }
  if (result != 0) {
    const absl::Status error = absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
    return absl::UnimplementedError(
        absl::StrCat(error.message(),
                     "; give a run_dir on a file system with locks (flock), so that no second "
                     "orchestrator can use it"));
  }
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  const std::string holder =
      absl::StrCat("process ", getpid(), " on ", host, ", started ",
                   absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::Now(), absl::UTCTimeZone()), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, holder.data(), holder.size(), 0) != static_cast<ssize_t>(holder.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return lock;
}

RunLock::~RunLock() { close(fd_); }

}  // namespace quartet
