// "host:port" as users and configurations write it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
  std::string ToString() const;  // brackets around IPv6 addresses
};

// INVALID_ARGUMENT names `address` and what is expected.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// 127.0.0.0/8, ::1 and "localhost".
bool IsLoopback(absl::string_view host);

// Refuses addresses that other machines could reach, unless TLS is configured.
absl::Status CheckListenAddress(absl::string_view address, const TlsConfig& tls);

}  // namespace quartet
