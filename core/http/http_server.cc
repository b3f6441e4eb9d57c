#include "core/http/http_server.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/byte_budget.h"
#include "core/base/files/open_files.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/pause.h"
#include "core/http/connections.h"
#include "core/http/disconnect_watcher.h"
#include "core/http/request_head.h"
#include "core/network/local_users.h"

namespace quartet {
namespace {

// Beyond one for each request that may be answered at the same time: for control, and requests that are being read.
constexpr int kOtherConnections = 128;
// Places for those that have been told to close.
constexpr int kClosingConnections = 64;
constexpr int kBacklog = 1024;
constexpr size_t kBlockBytes = 16 << 10;
constexpr size_t kHeaderBytes = 64 << 10;
// A connection on which nothing moves is closed after so long, unless the handler is at work.
constexpr unsigned kIdleSeconds = 60;
// So often those that are overdue are looked for.
constexpr absl::Duration kOverdueEvery = absl::Seconds(1);
// Of the body of a request that is refused, that are read for the client to read the answer.
constexpr int64_t kMostDroppedBytes = int64_t{256} << 20;

absl::StatusOr<int> Listen(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &list);
      error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resolve the host '", address.host, "': ", gai_strerror(error)));
  }
  const absl::Cleanup free_list = [list] { freeaddrinfo(list); };
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  const std::string what = absl::StrCat("cannot listen on ", address.ToString());
  if (error == EADDRINUSE) return absl::UnavailableError(absl::StrCat(what, ": the address is in use"));
  if (error == EADDRNOTAVAIL) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": it is not an address of this host"));
  }
  return absl::ErrnoToStatus(error, what);
}

int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

// By when heads are to have come, and bodies to have gone through their connections.
class Pace {
 public:
  Pace(const HttpServerOptions& options, Connections* connections)
      : head_time_(options.head_time),
        time_(options.body_time),
        bytes_per_second_(options.body_bytes_per_second),
        connections_(*connections) {}
  // The head of a request is what may come next.
  void BeginHead(MHD_Connection* connection) {
    connections_.SetDeadline(connection, Connections::Clock::now() + head_time_);
  }
  void Begin(MHD_Connection* connection, int64_t bytes) {
    connections_.SetDeadline(connection,
                             Connections::Clock::now() + time_ + std::chrono::seconds(bytes / bytes_per_second_));
  }
  // Whatever was begun.
  void End(MHD_Connection* connection) { connections_.SetDeadline(connection, std::nullopt); }

 private:
  const std::chrono::seconds head_time_;
  const std::chrono::seconds time_;
  const int64_t bytes_per_second_;
  Connections& connections_;
};

// While it lives the connection is not idle, however long nothing moves on it.
class AtWork {
 public:
  AtWork(MHD_Connection* connection, Pace* pace) : connection_(connection) {
    SetTimeout(0);
    pace->End(connection);
  }
  ~AtWork() { SetTimeout(kIdleSeconds); }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

 private:
  void SetTimeout(unsigned seconds) { MHD_set_connection_option(connection_, MHD_CONNECTION_OPTION_TIMEOUT, seconds); }
  MHD_Connection* const connection_;
};

// Whether the other end has closed the connection, or its sending half.
bool IsClosedByPeer(MHD_Connection* connection) {
  pollfd file = {.fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
                 .events = POLLRDHUP,
                 .revents = 0};
  return poll(&file, 1, 0) > 0;
}

// Tells `when_sent` once how a reply's sending has ended.
class Delivery {
 public:
  explicit Delivery(std::function<void(bool)> when_sent) : when_sent_(std::move(when_sent)) {}
  ~Delivery() { End(false); }
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  // The body, or a piece of it, is about to be sent. The client's closing later tells nothing: it may have read all.
  void Begin(MHD_Connection* connection) { is_there_ = when_sent_ == nullptr || !IsClosedByPeer(connection); }
  void End(bool sent) {
    if (const auto when_sent = std::exchange(when_sent_, nullptr)) when_sent(sent && is_there_);
  }

 private:
  std::function<void(bool)> when_sent_;
  bool is_there_ = false;
};

// A body that comes in pieces.
struct Pieces {
  MHD_Connection* connection;
  Pace* pace;
  Delivery* delivery;  // or null
  std::function<std::optional<std::string>()> next;
  std::string piece;
  size_t sent = 0;  // of piece

  static ssize_t Read(void* self, uint64_t /*position*/, char* buffer, size_t size) {
    auto& pieces = *static_cast<Pieces*>(self);
    if (pieces.sent == pieces.piece.size()) {
      const AtWork at_work(pieces.connection, pieces.pace);
      try {
        std::optional<std::string> piece;
        do {
          piece = pieces.next();
        } while (piece.has_value() && piece->empty());
        pieces.pace->Begin(pieces.connection, piece.has_value() ? static_cast<int64_t>(piece->size()) : 0);
        if (!piece.has_value()) {
          // A client that knows the last one need not wait for the end.
          if (pieces.delivery != nullptr) pieces.delivery->End(true);
          return MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (pieces.delivery != nullptr) pieces.delivery->Begin(pieces.connection);
        pieces.piece = *std::move(piece);
        pieces.sent = 0;
      } catch (const std::exception& error) {
        QUARTET_LOG(kError) << "HTTP: " << error.what();
        return MHD_CONTENT_READER_END_WITH_ERROR;
      }
    }
    const size_t count = std::min(size, pieces.piece.size() - pieces.sent);
    pieces.piece.copy(buffer, count, pieces.sent);
    pieces.sent += count;
    return static_cast<ssize_t>(count);
  }
  static void Free(void* self) { delete static_cast<Pieces*>(self); }
};

// `delivery`, or null, outlives the sending.
MHD_Result Send(MHD_Connection* connection, HttpReply reply, Pace* pace, Delivery* delivery = nullptr) {
  if (delivery != nullptr) delivery->Begin(connection);
  pace->Begin(connection, static_cast<int64_t>(reply.body.size()));
  MHD_Response* response =
      reply.next_piece ? MHD_create_response_from_callback(
                             MHD_SIZE_UNKNOWN, kBlockBytes, Pieces::Read,
                             new Pieces{connection, pace, delivery, std::move(reply.next_piece), {}}, Pieces::Free)
                       : MHD_create_response_from_buffer(reply.body.size(), reply.body.data(), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, "Content-Type", reply.content_type.c_str());
  for (const auto& [name, value] : reply.headers) MHD_add_response_header(response, name.c_str(), value.c_str());
  const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(reply.status), response);
  MHD_destroy_response(response);
  return queued;
}

// As far as the system allows it.
void RaiseFileLimit(int64_t files) {
  if (const int64_t allowed = AllowOpenFiles(files); allowed < files) {
    QUARTET_LOG(kWarning) << "HTTP: only " << allowed << " files can be open (ulimit -n); " << files
                          << " would be needed for all connections";
  }
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpServerOptions& options, HttpHandler* handler)
      : options_(options),
        handler_(handler),
        bodies_(options.max_bodies_bytes),
        connections_(options.max_requests + kOtherConnections),
        pace_(options, &connections_) {}
  ~HttpServerImpl() override {
    overdue_ = {};                                     // which ends it
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);  // which closes the socket
  }

  absl::Status Start() {
    QUARTET_ASSIGN_OR_RETURN(const int fd, Listen(options_.listen));
    address_ = {options_.listen.host, PortOf(fd)};
    const bool tls = !options_.private_key.empty();
    std::vector<MHD_OptionItem> more;
    if (tls) {
      more.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, options_.certificate.data()});
      more.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, options_.private_key.data()});
    }
    more.push_back({MHD_OPTION_END, 0, nullptr});
    const int connections = options_.max_requests + kOtherConnections + kClosingConnections;
    RaiseFileLimit(connections + 1024);
    daemon_ = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | (tls ? MHD_USE_TLS : 0), 0,
        nullptr, nullptr, &HttpServerImpl::Handle, this, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        static_cast<unsigned>(connections), MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, kHeaderBytes, MHD_OPTION_URI_LOG_CALLBACK, &HttpServerImpl::FirstLine, this,
        MHD_OPTION_NOTIFY_COMPLETED, &HttpServerImpl::Completed, this, MHD_OPTION_NOTIFY_CONNECTION,
        &HttpServerImpl::OpenedOrClosed, this, MHD_OPTION_ARRAY, more.data(), MHD_OPTION_END);
    if (daemon_ != nullptr) {
      overdue_ = std::jthread([this](const std::stop_token& stop) { CloseOverdue(stop); });
      return absl::OkStatus();
    }
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat("cannot start the HTTP server on ", address_.ToString(),
                     tls ? ": are certificate and key PEM, and do they belong together?" : ""));
  }

  const HostPort& address() const override { return address_; }

 private:
  // A request, until its answer is sent.
  struct Incoming {
    explicit Incoming(ByteBudget* bodies) {
      request.share = ByteBudget::Share(bodies);
      request.bodies = bodies;
    }
    std::string target;  // as ReadHead is told
    bool has_head = false;
    HttpRequest request;
    std::optional<HttpReply> refusal;  // what it is answered with once it has come
    int64_t dropped = 0;               // bytes of its body
    std::optional<Delivery> delivery;
    std::shared_ptr<void> until_sent;
    bool has_place = false;  // among max_requests
    std::optional<DisconnectWatcher::Watch> client;
  };

  // Called when the first line of a request is there; what it returns is that request's `state` from then on.
  static void* FirstLine(void* self, const char* target, MHD_Connection* /*connection*/) {
    try {
      auto incoming = std::make_unique<Incoming>(&static_cast<HttpServerImpl*>(self)->bodies_);
      incoming->target = target;
      return incoming.release();
    } catch (const std::exception& error) {
      QUARTET_LOG(kError) << "HTTP: " << error.what();
      return nullptr;
    }
  }

  // Called once when the headers are there, then for each part of the body, then at its end.
  static MHD_Result Handle(void* self, MHD_Connection* connection, const char* url, const char* method,
                           const char* version, const char* data, size_t* data_size, void** state) {
    auto* incoming = static_cast<Incoming*>(*state);
    if (incoming == nullptr) return MHD_NO;  // closes the connection
    try {
      auto& server = *static_cast<HttpServerImpl*>(self);
      server.connections_.Moved(connection);
      if (!incoming->has_head) return server.TakeHead(connection, incoming, url, method, version);
      return server.TakeBody(connection, incoming, method, data, data_size);
    } catch (const std::exception& error) {
      QUARTET_LOG(kError) << "HTTP: " << error.what();
      return MHD_NO;  // closes the connection
    }
  }

  // Answers a request at once, without its body, and no other on its connection.
  MHD_Result End(MHD_Connection* connection, HttpReply reply) {
    reply.headers["Connection"] = "close";
    return Send(connection, std::move(reply), &pace_);
  }

  MHD_Result TakeHead(MHD_Connection* connection, Incoming* incoming, const char* url, const char* method,
                      const char* version) {
    incoming->has_head = true;
    HttpRequest& request = incoming->request;
    if (!ReadHead(connection, incoming->target, method, url, version, &request)) {
      return End(connection, options_.malformed);
    }
    // libmicrohttpd has let only a number pass that fits into 64 bits.
    uint64_t length = 0;
    const auto said = request.headers.find("content-length");
    if (said != request.headers.end() && !absl::SimpleAtoi(said->second, &length)) {
      return End(connection, options_.malformed);
    }
    if (options_.own_user_only && !IsOwnUsers(connection)) {
      incoming->refusal = options_.not_yours;
    } else if (std::optional<HttpReply> refusal = handler_->Refuse(request)) {
      incoming->refusal = std::move(refusal);
    } else if (std::cmp_greater(length, options_.max_body_bytes)) {
      incoming->refusal = handler_->Refused(request, options_.too_long);
    } else if (std::cmp_greater(length, bodies_.limit() - bodies_.held())) {
      incoming->refusal = handler_->Refused(request, options_.bodies_full);
    }
    // A body that comes is read to its end, so that a client that writes it all first gets to read the answer. One
    // that has not been begun need not come.
    const bool asks_first = request.headers.contains("expect");
    if (incoming->refusal.has_value() && (asks_first || std::cmp_greater(length, kMostDroppedBytes))) {
      return End(connection, *std::move(incoming->refusal));
    }
    pace_.Begin(connection, said != request.headers.end() ? static_cast<int64_t>(length) : options_.max_body_bytes);
    return MHD_YES;
  }

  MHD_Result TakeBody(MHD_Connection* connection, Incoming* incoming, const char* method, const char* data,
                      size_t* data_size) {
    HttpRequest& request = incoming->request;
    if (*data_size > 0) {
      const auto size = static_cast<int64_t>(*data_size);
      if (!incoming->refusal.has_value()) {
        if (request.share.bytes() + size > options_.max_body_bytes) {
          incoming->refusal = handler_->Refused(request, options_.too_long);
        } else if (!request.share.Grow(size)) {
          incoming->refusal = handler_->Refused(request, options_.bodies_full);
        } else {
          request.body.append(data, *data_size);
        }
        if (incoming->refusal.has_value()) request.DropBody();
      } else {
        incoming->dropped += size;
        if (incoming->dropped > kMostDroppedBytes) return MHD_NO;  // closes the connection
      }
      *data_size = 0;
      return MHD_YES;
    }
    if (HasTrailers(connection, method)) return End(connection, options_.malformed);
    if (!incoming->refusal.has_value() && !handler_->IsControl(request)) {
      incoming->has_place = TakePlace();
      if (!incoming->has_place) incoming->refusal = handler_->Refused(request, options_.too_many);
    }
    if (incoming->refusal.has_value()) return Send(connection, *std::move(incoming->refusal), &pace_);
    connections_.SetBusy(connection, true);
    incoming->client.emplace(&disconnects_,
                             MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    HttpReply reply;
    {
      const AtWork at_work(connection, &pace_);
      reply = handler_->Answer(request, incoming->client->token());
    }
    request.DropBody();
    incoming->until_sent = std::move(reply.until_sent);
    incoming->delivery.emplace(std::move(reply.when_sent));
    return Send(connection, std::move(reply), &pace_, &*incoming->delivery);
  }

  void CloseOverdue(const std::stop_token& stop) {
    while (PauseFor(stop, kOverdueEvery)) connections_.CloseOverdue(Connections::Clock::now());
  }

  static bool IsOwnUsers(MHD_Connection* connection) {
    const absl::StatusOr<uid_t> user =
        UserOfPeer(MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    return user.ok() && IsTrusted(*user);
  }

  bool TakePlace() {
    for (int taken = requests_; taken < options_.max_requests;) {
      if (requests_.compare_exchange_weak(taken, taken + 1)) return true;
    }
    return false;
  }

  static void Completed(void* self, MHD_Connection* connection, void** state, MHD_RequestTerminationCode why) {
    auto& server = *static_cast<HttpServerImpl*>(self);
    auto* incoming = static_cast<Incoming*>(std::exchange(*state, nullptr));
    if (incoming == nullptr) return;
    if (incoming->delivery.has_value()) incoming->delivery->End(why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (incoming->has_place) --server.requests_;
    delete incoming;
    server.pace_.BeginHead(connection);
    server.connections_.SetBusy(connection, false);
    server.connections_.Moved(connection);
  }

  static void OpenedOrClosed(void* self, MHD_Connection* connection, void** /*state*/,
                             MHD_ConnectionNotificationCode what) {
    auto& server = *static_cast<HttpServerImpl*>(self);
    Connections& connections = server.connections_;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
      connections.Closed(connection);
      return;
    }
    // Its thread closes the socket after this has been told.
    const int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    connections.Opened(connection, [fd] { shutdown(fd, SHUT_RDWR); });
    server.pace_.BeginHead(connection);
  }

  HttpServerOptions options_;
  HttpHandler* const handler_;
  HostPort address_;
  ByteBudget bodies_;
  std::atomic<int> requests_{0};  // that have a place
  Connections connections_;
  Pace pace_;
  DisconnectWatcher disconnects_;
  MHD_Daemon* daemon_ = nullptr;
  std::jthread overdue_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, HttpHandler* handler) {
  auto server = std::make_unique<HttpServerImpl>(options, handler);
  QUARTET_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace quartet
