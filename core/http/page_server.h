// Serves pages that are made anew each time they are asked for, to people and to programs such as Prometheus.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/http/http_access.h"
#include "core/http/http_server.h"

namespace quartet {

// By path, "/metrics". Called from many threads at once.
using Pages = std::map<std::string, std::function<HttpReply()>>;

class PageServer {
 public:
  // Answers GET of these paths. What `pages` call outlives the server.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(const HttpAccessFields& fields, Pages pages);
  virtual ~PageServer() = default;
  // "http://host:port", with the port that was found.
  virtual std::string url() const = 0;
};

// An error, as text.
HttpReply TextError(const absl::Status& status, int http_status);

}  // namespace quartet
