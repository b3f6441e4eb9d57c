// Under which of its addresses this host is reached.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/network/address.h"

namespace quartet {

// "0.0.0.0" and "::": all of a host's addresses to listen on, none that anybody reaches it under.
bool IsWildcard(absl::string_view host);

// The address of this host from which `remote` is reached.
absl::StatusOr<std::string> LocalAddressTowards(const HostPort& remote);

// The name of the interface that has `host`, the first address that it stands for: what listens there does on that
// interface. NOT_FOUND: none of this host's has it.
absl::StatusOr<std::string> InterfaceOf(const std::string& host);

// What others reach this host under where it listens on `wildcard`, and what sockets that they connect to can be bound
// to: its name where that stands for an address of one of its interfaces other than loopback (Debian gives a name to
// 127.0.1.1), else such an address, of IPv4 before IPv6. NOT_FOUND: it has none.
absl::StatusOr<std::string> OwnReachableHost(absl::string_view wildcard);

// Whether `named`, which others are told, is this host where it listens on `wildcard`: the first of its addresses is
// one of this host's, and not loopback unless `from_here_only`. INVALID_ARGUMENT names it, the address that it stands
// for, and those that would do.
absl::Status CheckReachable(const HostPort& named, absl::string_view wildcard, bool from_here_only);

}  // namespace quartet
