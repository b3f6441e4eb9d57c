// Figures for Prometheus to scrape, over HTTP.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/http/http_access.h"
#include "core/metrics/families.h"

namespace quartet {

// Answers GET /metrics.
class MetricsServer {
 public:
  // `collect` is called for each scrape, from many threads at once, and outlives the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const HttpAccessFields& fields,
                                                              std::function<MetricFamilies()> collect);
  virtual ~MetricsServer() = default;
  // "http://host:port/metrics", with the port that was found.
  virtual std::string url() const = 0;
};

// An error of a server for people and Prometheus, as text.
HttpReply TextError(const absl::Status& status, int http_status);
// What `access` refuses; nothing where it lets the request pass. Asks a browser's user for the key.
std::optional<HttpReply> RefusedBy(const HttpAccess& access, const HttpRequest& head);

}  // namespace quartet
