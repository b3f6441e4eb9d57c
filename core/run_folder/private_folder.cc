#include "core/run_folder/private_folder.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace quartet {

absl::Status MakePrivateFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return absl::ErrnoToStatus(errno, "cannot create " + path);
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && chmod(path.c_str(), 0700) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      path, " is no folder of this run's user alone, and whoever may write there decides what it runs; remove it"));
}

}  // namespace quartet
