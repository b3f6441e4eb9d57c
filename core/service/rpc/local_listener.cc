#include "core/service/rpc/local_listener.h"

#include <errno.h>
#include <grpcpp/security/server_credentials.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/network/local_users.h"
#include "core/network/resolve_host.h"
#include "core/service/rpc/repeated_line.h"

namespace quartet {
namespace {

// How long it waits where the process has no descriptor left for a connection.
constexpr std::chrono::milliseconds kNoRoom{100};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalListener>> LocalListener::Listen(const HostPort& address, bool reuse_port) {
  QUARTET_ASSIGN_OR_RETURN(const AddressList list, ResolveHost(address, SOCK_STREAM, AI_PASSIVE));
  const int wake = eventfd(0, EFD_CLOEXEC);
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  std::unique_ptr<LocalListener> listener(new LocalListener(fd, wake));  // closes both
  if (fd < 0 || wake < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (reuse_port) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
  if (bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address.ToString(), ": ", strerror(errno)));
  }
  const absl::StatusOr<uid_t> own = UserOfListener(address);
  if (!own.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot keep other users of this host from ", address.ToString(), ": ",
                                               std::string(own.status().message()),
                                               ". Set tls, or services.allow_other_users=true where there are none"));
  }
  return listener;
}

LocalListener::~LocalListener() {
  Stop();
  if (wake_ >= 0) close(wake_);
}

void LocalListener::AddTo(grpc::ServerBuilder& builder) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, grpc::InsecureServerCredentials());
}

void LocalListener::Start() {
  thread_ = std::thread([this] { Run(); });
}

void LocalListener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    QUARTET_CHECK(write(wake_, &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  if (const int fd = std::exchange(socket_, -1); fd >= 0) close(fd);
}

void LocalListener::Run() {
  RepeatedLine refused, no_room;
  const auto log = [](const std::optional<std::string>& line) {
    if (line.has_value()) QUARTET_LOG(kWarning) << *line;
  };
  while (true) {
    pollfd waits[] = {{.fd = socket_, .events = POLLIN, .revents = 0}, {.fd = wake_, .events = POLLIN, .revents = 0}};
    const bool more_to_tell = refused.waits() || no_room.waits();
    const int ready = poll(waits, 2, more_to_tell ? std::chrono::milliseconds(RepeatedLine::kPause).count() : -1);
    const RepeatedLine::Time now = std::chrono::steady_clock::now();
    log(refused.Due(now));
    log(no_room.Due(now));
    if (ready <= 0) continue;
    if (waits[1].revents != 0) return;
    const int fd = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        log(no_room.Happened(absl::StrCat("cannot take a connection: ", strerror(errno)), now));
        std::this_thread::sleep_for(kNoRoom);
      }
      continue;
    }
    const absl::StatusOr<uid_t> user = UserOfPeer(fd);
    if (!user.ok() || !IsTrusted(*user)) {
      if (!absl::IsNotFound(user.status())) {
        log(refused.Happened(
            absl::StrCat("refused a connection of ", user.ok() ? NameOfUser(*user) : user.status().message(),
                         ": without tls a service takes calls of its own user's programs, and of root's"),
            now));
      }
      close(fd);
      continue;
    }
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = -1;
    connection.fd = fd;
    acceptor_->HandleNewConnection(&connection);
  }
}

}  // namespace quartet
