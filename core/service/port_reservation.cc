#include "core/service/port_reservation.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const HostPort& address, int type, int flags) {
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

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

PortReservation::~PortReservation() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<PortReservation> PortReservation::Make(const HostPort& address) {
  QUARTET_ASSIGN_OR_RETURN(const AddressList list, Resolve(address, SOCK_STREAM, AI_PASSIVE));
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  PortReservation kept(address, fd);  // closes it on every path but the last
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, address.port == 0 ? SO_REUSEPORT : SO_REUSEADDR, &one, sizeof(one));
  // A socket that only tries the port must listen to meet another that listens; the one that keeps it must not.
  if (bind(fd, list->ai_addr, list->ai_addrlen) != 0 || (address.port != 0 && listen(fd, 1) != 0)) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", address.ToString(),
                       ": the address is in use by another process; stop that process, or choose another port with "
                       "--listen (port 0 takes a free one)"));
    }
    if (error == EADDRNOTAVAIL) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on ", address.ToString(), ": it is not an address of this host"));
    }
    return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", address.ToString()));
  }
  if (address.port != 0) return PortReservation(address, -1);
  sockaddr_storage bound;
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return absl::ErrnoToStatus(errno, "getsockname");
  kept.address_.port = PortOf(bound);
  return kept;
}

absl::StatusOr<std::string> LocalAddressTowards(const HostPort& remote) {
  QUARTET_ASSIGN_OR_RETURN(const AddressList list, Resolve(remote, SOCK_DGRAM, 0));
  const int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  absl::Cleanup close_fd = [fd] { close(fd); };
  sockaddr_storage local;
  socklen_t size = sizeof(local);
  char text[NI_MAXHOST];
  // Connecting a datagram socket sends nothing; it only looks up the route.
  if (connect(fd, list->ai_addr, list->ai_addrlen) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return absl::UnavailableError(absl::StrCat("there is no route to ", remote.ToString(), ": ", strerror(errno)));
  }
  return std::string(text);
}

}  // namespace quartet
