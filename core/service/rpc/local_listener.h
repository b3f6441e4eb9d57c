// Takes loopback connections for a gRPC server that asks for no certificates: of this user's programs, and of root's.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "core/network/address.h"

namespace quartet {

// A connection of another user is closed before a byte of it is read, and the log says whose it was: of the first, then
// once a minute with their number. Not thread safe.
class LocalListener {
 public:
  // Listens at once; what connects waits until Start. `reuse_port` as for PortReservation. UNAVAILABLE where the
  // address is in use, or where this host does not tell whose a connection is: the message says what helps.
  static absl::StatusOr<std::unique_ptr<LocalListener>> Listen(const HostPort& address, bool reuse_port);
  ~LocalListener();  // as Stop

  // The server that `builder` makes gets the connections. Before it is built.
  void AddTo(grpc::ServerBuilder& builder);
  // After the server has started.
  void Start();
  // Takes no more connections; before the server shuts down.
  void Stop();

 private:
  LocalListener(int socket, int wake) : socket_(socket), wake_(wake) {}
  void Run();

  int socket_;
  const int wake_;  // an eventfd that ends the thread
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::thread thread_;
};

}  // namespace quartet
