// An HTTP/1.1 server for answers that take long: a thread a connection, bodies that are sent as they come about, and a
// way to notice that the client has gone. Requests, bodies and connections are bounded; a new connection always finds a
// place (connections.h). A request that is refused is read to its end, unless it is very long, so that whoever writes
// all of it first gets to read why. Knows nothing of what is served.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/byte_budget.h"
#include "core/network/address.h"

namespace quartet {

struct HttpRequest {
  std::string method;                          // "GET", ...
  std::string path;                            // decoded, without the query
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  ByteBudget::Share share;       // of the body
  ByteBudget* bodies = nullptr;  // which it is a share of; whatever is made of the body may have another

  // To be called as soon as the body is not needed any more, so that others have its room.
  void DropBody() {
    body = {};
    share.Release();
  }
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::map<std::string, std::string> headers;  // further ones
  std::string body;
  // Where set, the body is what it gives, piece by piece and each sent at once, until nothing comes. It is destroyed as
  // soon as the client has gone or all is sent.
  std::function<std::optional<std::string>()> next_piece;
  // Ends as soon as the client has gone or all is sent, too.
  std::shared_ptr<void> until_sent;
  // Called once, when either is so, before the next request on the connection is read: true where all of the body was
  // sent to a client that was there when its last piece, or the whole, was begun. It may have read the reply, and have
  // asked on another connection, before this is called.
  std::function<void(bool delivered)> when_sent;
};

// Its functions are called from many threads at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Asked before the body is read, which is empty yet; a reply ends the request.
  virtual std::optional<HttpReply> Refuse(const HttpRequest& head) = 0;
  // Told of a request that the server itself refuses, for its length or for want of room: what it is answered with.
  virtual HttpReply Refused(const HttpRequest& /*head*/, HttpReply refusal) { return refusal; }
  // Whether the request is answered at once, without waiting for anything. Such requests are answered however many
  // others are.
  virtual bool IsControl(const HttpRequest& head) = 0;
  // `gone` is requested to stop when the client closes the connection, until the reply is sent.
  virtual HttpReply Answer(HttpRequest& request, const std::stop_token& gone) = 0;
};

// What whoever sends malformed headers is told.
inline constexpr char kMalformedHeaders[] =
    "a header comes twice that may come once (Authorization, Content-Length, Content-Type, Host, Transfer-Encoding), "
    "or both Content-Length and Transfer-Encoding do, or Transfer-Encoding is another than chunked, or a header's name "
    "is empty or has a space or another character that no name has, or a header goes on in the next line, or the path "
    "or "
    "a header's value has a NUL or another control character, or lines end in two ways, or headers come behind the "
    "body";

struct HttpServerOptions {
  HostPort listen;  // port 0: a free one
  // A request of a program of another user of this host, root apart, is answered with `not_yours`. For loopback.
  bool own_user_only = false;
  HttpReply not_yours = {.status = 403};
  // What kMalformedHeaders says.
  HttpReply malformed = {.status = 400};
  // PEM; both or neither.
  std::string certificate;
  std::string private_key;
  // What a longer body is answered with.
  int64_t max_body_bytes = int64_t{16} << 20;
  HttpReply too_long = {.status = 413};
  // Bodies of all requests, until DropBody; and what those beyond are answered with.
  int64_t max_bodies_bytes = int64_t{256} << 20;
  HttpReply bodies_full = {.status = 503};
  // Requests that are answered at the same time, beside those of control; and what those beyond are answered with.
  int max_requests = 1024;
  HttpReply too_many = {.status = 503};
  // The head of a request is to have come after this time from when its connection was opened, or the request before
  // was answered: more than the minute after which a connection on which nothing moves is closed. Likewise closed.
  std::chrono::seconds head_time{120};
  // The body of a request, and that of a reply or one piece of it, is to have come, or been taken, after this time and
  // a second for each `body_bytes_per_second`. A connection on which it takes longer is closed, within a second or two.
  std::chrono::seconds body_time{60};
  int64_t body_bytes_per_second = 64 << 10;
};

class HttpServer {
 public:
  // Listens. `handler` outlives the server. UNAVAILABLE where the address is in use, INVALID_ARGUMENT where it is not
  // one of this host or certificate and key are not usable.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, HttpHandler* handler);
  // Closes idle connections and waits for the handler's running calls, which its owner ends before.
  virtual ~HttpServer() = default;

  // With the port that was found.
  virtual const HostPort& address() const = 0;
};

}  // namespace quartet
