#include "core/service/ranks/addresses/port_reservation.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/network/resolve_host.h"

namespace quartet {
namespace {

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

absl::StatusOr<PortReservation> PortReservation::Make(const HostPort& address) {
  QUARTET_ASSIGN_OR_RETURN(const AddressList list, ResolveHost(address, SOCK_STREAM, AI_PASSIVE));
  Fd kept(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!kept.is_open()) return absl::ErrnoToStatus(errno, "cannot make a socket");
  const int one = 1;
  setsockopt(kept.get(), SOL_SOCKET, address.port == 0 ? SO_REUSEPORT : SO_REUSEADDR, &one, sizeof(one));
  // A socket that only tries the port must listen to meet another that listens; the one that keeps it must not.
  if (bind(kept.get(), list->ai_addr, list->ai_addrlen) != 0 || (address.port != 0 && listen(kept.get(), 1) != 0)) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", address.ToString(),
                       ": the address is in use by another process; stop that process, or choose another port "
                       "(port 0 takes a free one)"));
    }
    if (error == EADDRNOTAVAIL) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on ", address.ToString(), ": it is not an address of this host"));
    }
    return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", address.ToString()));
  }
  if (address.port != 0) return PortReservation(address, Fd());
  sockaddr_storage bound;
  socklen_t size = sizeof(bound);
  if (getsockname(kept.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return absl::ErrnoToStatus(errno, "getsockname");
  return PortReservation({.host = address.host, .port = PortOf(bound)}, std::move(kept));
}

}  // namespace quartet
