#include "core/run_folder/file_tail.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace quartet {

absl::Status FileTail::Read(std::string* lines) {
  lines->clear();
  began_anew_ = false;
  // A pipe of that name would be waited for.
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno != ENOENT && errno != ENOTDIR) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path_));
  }
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat now = {};
  if (fd >= 0 && fstat(fd, &now) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
  if (fd >= 0 && !S_ISREG(now.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path_, " is not a regular file"));
  if (now.st_ino != inode_ || now.st_dev != device_ || now.st_size < read_) {
    began_anew_ = read_ > 0;
    device_ = now.st_dev;
    inode_ = now.st_ino;
    read_ = std::max<int64_t>(0, now.st_size - most_);
  }
  lines->resize(static_cast<size_t>(now.st_size - read_));
  size_t got = 0;
  while (got < lines->size()) {
    const ssize_t n = pread(fd, lines->data() + got, lines->size() - got, read_ + static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
    if (n == 0) break;  // it has been shortened since
    got += static_cast<size_t>(n);
  }
  // A last line may still be being written.
  lines->resize(got);
  lines->resize(lines->rfind('\n') + 1);  // npos + 1 is 0
  read_ += static_cast<int64_t>(lines->size());
  return absl::OkStatus();
}

std::vector<nlohmann::json> Records(const std::string& lines) {
  std::vector<nlohmann::json> records;
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object()) records.push_back(std::move(record));
  }
  return records;
}

}  // namespace quartet
