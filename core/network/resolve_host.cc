#include "core/network/resolve_host.h"

#include "absl/strings/str_cat.h"

namespace quartet {

absl::StatusOr<AddressList> ResolveHost(const HostPort& address, int type, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resolve the host '", address.host, "': ", gai_strerror(error)));
  }
  return AddressList(list, &freeaddrinfo);
}

}  // namespace quartet
