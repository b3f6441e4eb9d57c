// Where an HTTP server of ours listens, and whom it answers: everybody who brings its key, or without a key programs of
// this host and user.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/http/http_server.h"

namespace quartet {

// Fields of a configuration, as they were checked.
struct HttpAccessFields {
  std::string section;            // that they stand in, for errors: "rollout.http"
  std::string listen_field = {};  // where it is not listen of that section
  std::string listen;
  std::string api_key_file;
  // PEM; both or neither.
  std::string cert_file;
  std::string key_file;
  // Without a key, programs of all users of this host are answered.
  bool any_user = false;
};

class HttpAccess {
 public:
  // Reads the files. FAILED_PRECONDITION where one with a secret may be read by others than its owner; INVALID_ARGUMENT
  // says what is wrong with the certificate.
  static absl::StatusOr<HttpAccess> Read(const HttpAccessFields& fields);

  // What programs of other users are told.
  absl::Status not_yours() const;

  // UNAUTHENTICATED where the request does not bring the key, as "Authorization: Bearer KEY", or as browsers ask their
  // user for it, as the password of any name. Without a key, PERMISSION_DENIED unless it is addressed to a loopback
  // name, so that no web page can reach the server through a name of its own.
  absl::Status Check(const HttpRequest& head) const;

  // Starts a server that listens there, for them, with the certificate; an address in use is told with the field's
  // name.
  absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, HttpHandler* handler) const;

  const std::string& listen() const { return listen_text_; }
  // "http://" or "https://".
  std::string scheme() const { return certificate_.empty() ? "http://" : "https://"; }

 private:
  std::string section_, listen_field_, listen_text_, api_key_, certificate_, private_key_;
  HostPort listen_;
  bool any_user_ = false;
};

// UNAUTHENTICATED where the request does not bring `key`, as HttpAccess::Check.
absl::Status CheckKey(const HttpRequest& head, const std::string& key);

// Of a header of the request, in lower case; "" where it is not there.
std::string HeaderOf(const HttpRequest& request, const char* name);

}  // namespace quartet
