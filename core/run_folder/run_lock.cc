#include "core/run_folder/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/network/host_name.h"

namespace quartet {
namespace {

std::string FirstLine(const Fd& file) {
  char text[512];
  const ssize_t size = pread(file.get(), text, sizeof(text), 0);
  std::string line(text, size > 0 ? static_cast<size_t>(size) : 0);
  line.resize(std::min(line.find('\n'), line.size()));
  return line;
}

// False, with errno, where it cannot be locked.
bool TryLock(const Fd& file, int kind) {
  int result;
  do {
    result = flock(file.get(), kind | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

std::optional<std::string> RunLock::HolderOf(const std::string& run_dir) {
  // NONBLOCK: a pipe of that name must not hang us.
  const Fd file(open(absl::StrCat(run_dir, "/", kRunLockName).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open() && errno == EACCES) return "not known: the run is of another user";
  if (!file.is_open() || TryLock(file, LOCK_SH) || errno != EWOULDBLOCK) return std::nullopt;
  return FirstLine(file);
}

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::Take(const std::string& run_dir) {
  const std::string path = absl::StrCat(run_dir, "/", kRunLockName);
  // Closed in programs that are started: a service that outlives the orchestrator does not hold its lock.
  Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.is_open()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  // One that was made for others to read. It may be somebody else's who lets this user write it.
  if (struct stat info; fstat(file.get(), &info) == 0 && info.st_uid == geteuid()) fchmod(file.get(), 0600);
  const bool locked = TryLock(file, LOCK_EX);
  if (!locked && errno == EWOULDBLOCK) {
    const std::string holder = FirstLine(file);
    return absl::AbortedError(absl::StrCat("run_dir ", run_dir, " is in use by another orchestrator",
                                           holder.empty() ? "" : absl::StrCat(" (", holder, ")"),
                                           "; end it first, or give another run_dir"));
  }
  if (!locked) {
    const absl::Status error = absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
    return absl::UnimplementedError(
        absl::StrCat(error.message(),
                     "; give a run_dir on a file system with locks (flock), so that no second "
                     "orchestrator can use it"));
  }
  const std::string holder =
      absl::StrCat("process ", getpid(), " on ", HostName(), ", started ",
                   absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::Now(), absl::UTCTimeZone()), "\n");
  if (ftruncate(file.get(), 0) != 0 || !WriteAllAt(file.get(), 0, holder)) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return absl::WrapUnique(new RunLock(std::move(file)));
}

}  // namespace quartet
