#include "core/network/local_users.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <pwd.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files/fd.h"
#include "core/base/status_macros.h"
#include "core/network/resolve_host.h"

namespace quartet {
namespace {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  bool is_ipv6() const { return storage.ss_family == AF_INET6; }
  // In the network's order of bytes, as the kernel's question has them.
  uint16_t port() const {
    return is_ipv6() ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(storage).sin_port;
  }
  void CopyIp(__be32* to) const {
    if (is_ipv6()) {
      memcpy(to, &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, sizeof(in6_addr));
    } else {
      to[0] = reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr;
    }
  }
};

absl::Status NotTold(int error) {
  return absl::UnavailableError(
      absl::StrCat("the kernel does not tell whose a socket is (sock_diag): ", strerror(error)));
}

// Of the TCP socket at `local` whose peer is `remote` (null: of the one that listens).
absl::StatusOr<uid_t> UserOfSocket(const SocketAddress& local, const SocketAddress* remote) {
  const Fd kernel(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!kernel.is_open()) return NotTold(errno);
  struct {
    nlmsghdr header;
    inet_diag_req_v2 body;
  } request = {};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = local.is_ipv6() ? AF_INET6 : AF_INET;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  request.body.id.idiag_sport = local.port();
  local.CopyIp(request.body.id.idiag_src);
  if (remote != nullptr) {
    request.body.id.idiag_dport = remote->port();
    remote->CopyIp(request.body.id.idiag_dst);
  }
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (send(kernel.get(), &request, sizeof(request), 0) < 0) return NotTold(errno);
  alignas(nlmsghdr) char reply[4096];
  ssize_t size;
  do {
    size = recv(kernel.get(), reply, sizeof(reply), 0);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return NotTold(errno);
  const auto* header = reinterpret_cast<const nlmsghdr*>(reply);
  if (!NLMSG_OK(header, static_cast<size_t>(size))) return NotTold(EPROTO);
  if (header->nlmsg_type == NLMSG_ERROR) {
    const int error = -static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
    // A protocol whose module is not there is ENOENT too; a server asks for its own socket first.
    if (error == ENOENT) return absl::NotFoundError("there is no such socket");
    return NotTold(error);
  }
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) {
    return NotTold(EPROTO);
  }
  const auto* socket = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  // What no process has open any more, but has not quite gone, is said to be root's.
  if (socket->idiag_inode == 0) return absl::NotFoundError("the socket is closed");
  return socket->idiag_uid;
}

}  // namespace

absl::StatusOr<uid_t> UserOfPeer(int fd) {
  SocketAddress peer, own;
  if (getpeername(fd, peer.get(), &peer.size) != 0) return absl::NotFoundError("the connection is closed");
  if (getsockname(fd, own.get(), &own.size) != 0) return absl::NotFoundError("the connection is closed");
  return UserOfSocket(peer, &own);
}

absl::StatusOr<uid_t> UserOfListener(const HostPort& address) {
  QUARTET_ASSIGN_OR_RETURN(const AddressList list, ResolveHost(address, SOCK_STREAM, 0));
  SocketAddress listener;
  listener.size = std::min<socklen_t>(list->ai_addrlen, sizeof(listener.storage));
  memcpy(&listener.storage, list->ai_addr, listener.size);
  return UserOfSocket(listener, nullptr);
}

bool IsTrusted(uid_t user) { return user == 0 || user == geteuid(); }

std::string NameOfUser(uid_t user) {
  std::vector<char> buffer(4096);
  passwd entry = {};
  passwd* found = nullptr;
  getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found);
  return absl::StrCat(found != nullptr ? found->pw_name : "user", " (", user, ")");
}

}  // namespace quartet
