// The system calls that sandboxed programs may not make, as a program for the kernel (seccomp).
#pragma once

#include <string>

namespace quartet {

// Bytes of an array of sock_filter, as bubblewrap's --seccomp reads them. New processes, other than threads, are
// refused (EPERM), and so are namespaces, mounts, tracing, keys, and whatever else of the kernel plain programs do not
// need. "": this machine's architecture is not known.
std::string SystemCallFilter();

}  // namespace quartet
