// A wall clock that a test sets, as the clock of a host may be set while a program runs.
#pragma once

#include <atomic>
#include <cstdint>

namespace quartet {

// How far the wall clock of the whole program, CLOCK_REALTIME of clock_gettime, is ahead of the machine's, in seconds.
// Other clocks are the machine's. Thread safe.
extern std::atomic<int64_t> wall_clock_ahead;

}  // namespace quartet
