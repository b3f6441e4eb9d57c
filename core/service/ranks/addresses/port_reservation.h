// Finds out whether an address can be listened on, and why not: gRPC only says that it cannot.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/files/fd.h"
#include "core/network/address.h"

namespace quartet {

// For port 0 a free port is chosen, and kept from being given to others until this object is gone; a server that is to
// listen on it meanwhile must allow SO_REUSEPORT. Any other port is only tried.
class PortReservation {
 public:
  // UNAVAILABLE where the address is in use, INVALID_ARGUMENT where it is not one of this host.
  static absl::StatusOr<PortReservation> Make(const HostPort& address);

  const HostPort& address() const { return address_; }
  bool needs_reuse_port() const { return socket_.is_open(); }

 private:
  PortReservation(HostPort address, Fd socket) : address_(std::move(address)), socket_(std::move(socket)) {}
  HostPort address_;
  Fd socket_;
};

}  // namespace quartet
