// Finds out whether an address can be listened on, and why not: gRPC only says that it cannot.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/network/address.h"

namespace quartet {

// For port 0 a free port is chosen, and kept from being given to others until this object is gone; a server that is to
// listen on it meanwhile must allow SO_REUSEPORT. Any other port is only tried.
class PortReservation {
 public:
  // UNAVAILABLE where the address is in use, INVALID_ARGUMENT where it is not one of this host.
  static absl::StatusOr<PortReservation> Make(const HostPort& address);
  PortReservation(PortReservation&& other) noexcept : address_(std::move(other.address_)), fd_(other.fd_) {
    other.fd_ = -1;
  }
  PortReservation& operator=(PortReservation&&) = delete;
  ~PortReservation();

  const HostPort& address() const { return address_; }
  bool needs_reuse_port() const { return fd_ >= 0; }

 private:
  PortReservation(HostPort address, int fd) : address_(std::move(address)), fd_(fd) {}
  HostPort address_;
  int fd_;
};

}  // namespace quartet
