#include "core/network/address.h"

#include <arpa/inet.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {

std::string HostPort::ToString() const {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port) : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const auto malformed = [address] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is not host:port with a port from 0 to 65535, such as 127.0.0.1:50051"));
  };
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return malformed();
  absl::string_view host = address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ":")) {
    return malformed();
  }
  HostPort result;
  result.host = std::string(host);
  if (result.host.empty() || absl::StrContains(host, "/") ||
      !absl::SimpleAtoi(address.substr(colon + 1), &result.port) || result.port < 0 || result.port > 65535) {
    return malformed();
  }
  return result;
}

bool IsLoopback(absl::string_view host) {
  const std::string name(host);
  in_addr v4;
  if (inet_pton(AF_INET, name.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, name.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return absl::EqualsIgnoreCase(host, "localhost");
}

absl::Status CheckListenAddress(absl::string_view address, const TlsConfig& tls) {
  QUARTET_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  if (IsLoopback(parsed.host) || !tls.key_file().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("listening on ", address,
                                                 " would let other machines in without encryption: set tls { ca_file, "
                                                 "cert_file, key_file } in the configuration, or listen on 127.0.0.1"));
}

}  // namespace quartet
