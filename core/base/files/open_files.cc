#include "core/base/files/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <mutex>

namespace quartet {

int64_t AllowOpenFiles(int64_t files) {
  static std::mutex mutex;  // between looking and setting
  const std::lock_guard lock(mutex);
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const auto wanted = static_cast<rlim_t>(files);
  if (limit.rlim_cur < wanted) {
    rlimit raised = limit;
    raised.rlim_cur = std::min(wanted, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

}  // namespace quartet
