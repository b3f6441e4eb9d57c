// How many files this process may have open.
#pragma once

#include <cstdint>

namespace quartet {

// Has this process, and those that it starts, open up to `files` at the same time, as far as the system allows it
// (ulimit -Hn). Returns how many may be. Thread safe.
int64_t AllowOpenFiles(int64_t files);

}  // namespace quartet
