// The system calls that sandboxed programs may make, as a program for the kernel (seccomp).
#pragma once

#include <string>

namespace quartet {

// Bytes of an array of sock_filter, as bubblewrap's --seccomp reads them. Allowed is what Python, NumPy and compiled
// code need on their own files, memory and, with `threads`, threads, a part of Docker's default profile. All else is
// refused: with ENOSYS what came with Linux 5.1 or later, so that libraries take the older call, with EPERM the rest.
// "": this machine's architecture is not known.
std::string SystemCallFilter(bool threads);

}  // namespace quartet
