// Whose the socket at the other end of a loopback connection is: what the kernel knows, not what a peer says of itself.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "core/network/address.h"

namespace quartet {

// Of the open socket that the accepted TCP connection `fd` comes from, a process of this host. NOT_FOUND where it has
// been closed, UNAVAILABLE where the kernel does not tell. Thread safe, as are all of these.
absl::StatusOr<uid_t> UserOfPeer(int fd);

// Of the socket that listens at `address`, of this host. NOT_FOUND: none does.
absl::StatusOr<uid_t> UserOfListener(const HostPort& address);

// This process's own, and root, who can do as they like with it anyway.
bool IsTrusted(uid_t user);

// "alice (1000)".
std::string NameOfUser(uid_t user);

}  // namespace quartet
