#include "core/base/testing/wall_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace quartet {

std::atomic<int64_t> wall_clock_ahead{0};

}  // namespace quartet

// In place of the C library's.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += quartet::wall_clock_ahead;
  return static_cast<int>(result);
}
