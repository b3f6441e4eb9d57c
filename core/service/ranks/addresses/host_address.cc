#include "core/service/ranks/addresses/host_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/files/fd.h"
#include "core/base/status_macros.h"
#include "core/network/host_name.h"
#include "core/network/resolve_host.h"

namespace quartet {
namespace {

std::string Numeric(const sockaddr* address) {
  const socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  char text[NI_MAXHOST];
  return getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

// Of interfaces that are up, without loopback and link-local ones; first IPv4's.
std::set<std::pair<int, std::string>> OwnAddresses(bool with_ipv6) {
  std::set<std::pair<int, std::string>> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  absl::Cleanup free_list = [list] { freeifaddrs(list); };
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && (family != AF_INET6 || !with_ipv6)) continue;
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr)) {
      continue;
    }
    if (std::string text = Numeric(one->ifa_addr); !text.empty()) found.emplace(family == AF_INET ? 0 : 1, text);
  }
  return found;
}

}  // namespace

bool IsWildcard(absl::string_view host) { return host == "0.0.0.0" || host == "::"; }

absl::StatusOr<std::string> LocalAddressTowards(const HostPort& remote) {
  QUARTET_ASSIGN_OR_RETURN(const AddressList list, ResolveHost(remote, SOCK_DGRAM, 0));
  const Fd own(socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!own.is_open()) return absl::ErrnoToStatus(errno, "cannot make a socket");
  sockaddr_storage local;
  socklen_t size = sizeof(local);
  // Connecting a datagram socket sends nothing; it only looks up the route.
  if (connect(own.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      getsockname(own.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) {
    return absl::UnavailableError(absl::StrCat("there is no route to ", remote.ToString(), ": ", strerror(errno)));
  }
  return Numeric(reinterpret_cast<sockaddr*>(&local));
}

absl::StatusOr<std::string> InterfaceOf(const std::string& host) {
  QUARTET_ASSIGN_OR_RETURN(const AddressList resolved, ResolveHost({.host = host, .port = 0}, SOCK_STREAM, 0));
  const std::string address = Numeric(resolved->ai_addr);
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::ErrnoToStatus(errno, "cannot list this host's interfaces");
  absl::Cleanup free_list = [list] { freeifaddrs(list); };
  const bool loopback = IsLoopback(address);  // an interface with one such address has all of 127.0.0.0/8
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != resolved->ai_family) continue;
    if (Numeric(one->ifa_addr) != address && !(loopback && (one->ifa_flags & IFF_LOOPBACK) != 0)) continue;
    const std::string name = one->ifa_name;
    return name.substr(0, name.find(':'));  // "eth0:1" is a second address of eth0
  }
  return absl::NotFoundError(absl::StrCat("no interface of this host has the address ", address,
                                          address == host ? "" : absl::StrCat(", for which '", host, "' stands")));
}

absl::StatusOr<std::string> OwnReachableHost(absl::string_view wildcard) {
  const std::set<std::pair<int, std::string>> own = OwnAddresses(/*with_ipv6=*/wildcard == "::");
  const std::string name = HostName();
  if (const absl::StatusOr<AddressList> list = ResolveHost({.host = name, .port = 0}, SOCK_STREAM, 0); list.ok()) {
    // The first is what those who are told the name bind and, on this host, connect to.
    const std::string first = Numeric((*list)->ai_addr);
    for (const auto& [order, address] : own) {
      if (address == first) return name;
    }
  }
  if (own.empty()) {
    return absl::NotFoundError(absl::StrCat("the host '", name, "' has no address that another could reach it under"));
  }
  return own.begin()->second;
}

absl::Status CheckReachable(const HostPort& named, absl::string_view wildcard, bool from_here_only) {
  QUARTET_ASSIGN_OR_RETURN(const AddressList list, ResolveHost(named, SOCK_STREAM, 0));
  const std::string address = Numeric(list->ai_addr);
  std::vector<std::string> own;
  for (const auto& [order, text] : OwnAddresses(/*with_ipv6=*/wildcard == "::")) own.push_back(text);
  if (std::find(own.begin(), own.end(), address) != own.end()) return absl::OkStatus();
  const bool loopback = IsLoopback(address);
  if (loopback && from_here_only) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", named.host, "'", address == named.host ? "" : absl::StrCat(" stands for ", address, " here, which"),
      loopback ? " is not reached from other hosts" : " is no address of this host", "; this host's are ",
      own.empty() ? "none" : absl::StrJoin(own, ", ")));
}

}  // namespace quartet
