// To be preloaded into a program: its wall clock is SKEW_SECONDS ahead. The monotonic clock is left as it is. Where the
// program hands a wall-clock time to the kernel, which does not know of this, it is set back.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

long Skew() {
  const char* seconds = getenv("SKEW_SECONDS");
  return seconds == nullptr ? 0 : strtol(seconds, nullptr, 10);
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
  const timespec kernel = SetBack(*until);
  return real(condition, mutex, &kernel);
}

long syscall(long number, ...) noexcept {
  static auto* const real = Real<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  void* arguments[6];  // as wide as any of them
  for (void*& argument : arguments) argument = va_arg(list, void*);
  va_end(list);
  timespec kernel;
  if (number == SYS_futex && (reinterpret_cast<uintptr_t>(arguments[1]) & FUTEX_CLOCK_REALTIME) != 0 &&
      arguments[3] != nullptr) {
    kernel = SetBack(*static_cast<const timespec*>(arguments[3]));
    arguments[3] = &kernel;
  }
  return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

}  // extern "C"
