// What NCCL reads of the environment and nowhere else: where it listens.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quartet {

inline constexpr char kNcclInterface[] = "NCCL_SOCKET_IFNAME";

// Has NCCL's sockets, of which it opens some on any interface of its choice and one of its monitor, be on the interface
// that has `host`, an address that this rank's sockets are bound to, and on no other. Variables that are set already
// stay, as do those of NCCL's files: /etc/nccl.conf, and what NCCL_CONF_FILE names, else ~/.nccl.conf. `root` is put
// before their paths, for tests. To be called before the process has threads that read the environment, and before its
// first communicator. NOT_FOUND: no interface has `host`.
absl::Status PutNcclBehind(const std::string& host, const std::string& root = "");

// Whether NCCL, told `said` (kNcclInterface's value), may take `interface` alone or among others: names begin as one of
// the list does; behind "=" they are whole, behind "^" those that are left out. Source: NCCL's documentation.
bool NcclTakes(absl::string_view said, absl::string_view interface);

}  // namespace quartet
