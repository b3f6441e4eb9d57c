// To be preloaded into a program: its wall clock is SKEW_SECONDS ahead, and by what the file SKEW_FILE (an int64_t, of
// seconds) says besides, at any moment. The monotonic clock is left as it is. Where the program hands a wall-clock time
// to the kernel, which does not know of this, it is set back; where it waits until one it is woken as soon as that is
// there by its own clock, as the kernel does when a clock is set.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

const volatile int64_t* MapFile() {
  const char* const path = getenv("SKEW_FILE");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const mapped = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<const volatile int64_t*>(mapped);
}

long Skew() {
  static const volatile int64_t* const besides = MapFile();
  const char* seconds = getenv("SKEW_SECONDS");
  return (seconds == nullptr ? 0 : strtol(seconds, nullptr, 10)) + (besides == nullptr ? 0 : *besides);
}

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// The kernel knows no times before the epoch, which have passed all the same.
timespec SetBack(const timespec& time) {
  const time_t seconds = time.tv_sec - Skew();
  return seconds < 0 ? timespec{} : timespec{.tv_sec = seconds, .tv_nsec = time.tv_nsec};
}

constexpr long kSlice = 20'000'000;  // nanoseconds

// The kernel's time that is the earlier of `until`, of the program's clock, and a slice from now.
timespec EndOfSlice(const timespec& until, bool* last) {
  timespec now;
  static auto* const real = Real<int(clockid_t, timespec*)>("clock_gettime");
  real(CLOCK_REALTIME, &now);
  const timespec end = SetBack(until);
  timespec slice = {.tv_sec = now.tv_sec, .tv_nsec = now.tv_nsec + kSlice};
  if (slice.tv_nsec >= 1'000'000'000) slice = {.tv_sec = slice.tv_sec + 1, .tv_nsec = slice.tv_nsec - 1'000'000'000};
  *last = end.tv_sec < slice.tv_sec || (end.tv_sec == slice.tv_sec && end.tv_nsec <= slice.tv_nsec);
  return *last ? end : slice;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const real = Real<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += Skew();
  return result;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* result) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  static auto* const real = Real<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  while (true) {
    bool last = false;
    const timespec kernel = EndOfSlice(*until, &last);
    const int result = real(condition, mutex, &kernel);
    if (result != ETIMEDOUT || last) return result;
  }
}

long syscall(long number, ...) noexcept {
  static auto* const real = Real<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  void* arguments[6];  // as wide as any of them
  for (void*& argument : arguments) argument = va_arg(list, void*);
  va_end(list);
  const bool waits = number == SYS_futex && (reinterpret_cast<uintptr_t>(arguments[1]) & FUTEX_CLOCK_REALTIME) != 0 &&
                     arguments[3] != nullptr;
  const auto* const until = static_cast<const timespec*>(arguments[3]);
  while (true) {
    bool last = true;
    timespec kernel;
    if (waits) {
      kernel = EndOfSlice(*until, &last);
      arguments[3] = &kernel;
    }
    const long result =
        real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    if (result != -1 || errno != ETIMEDOUT || last) return result;
  }
}

}  // extern "C"
