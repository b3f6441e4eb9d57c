// Addresses of the hosts that configurations name.
#pragma once

#include <netdb.h>

#include <memory>

#include "absl/status/statusor.h"
#include "core/network/address.h"

namespace quartet {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// As getaddrinfo with socket type `type`. INVALID_ARGUMENT names the host.
absl::StatusOr<AddressList> ResolveHost(const HostPort& address, int type, int flags);

}  // namespace quartet
