#include "core/metrics/metrics_server.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

class Server final : public MetricsServer, public HttpHandler {
 public:
  Server(HttpAccess access, std::function<MetricFamilies()> collect)
      : access_(std::move(access)), collect_(std::move(collect)) {}

  absl::Status Start() {
    HttpServerOptions options;
    options.not_yours = TextError(access_.not_yours(), 403);
    options.max_requests = 16;
    QUARTET_ASSIGN_OR_RETURN(server_, access_.Start(std::move(options), this));
    return absl::OkStatus();
  }

  std::string url() const override { return access_.scheme() + server_->address().ToString() + "/metrics"; }

  std::optional<HttpReply> Refuse(const HttpRequest& head) override {
    if (std::optional<HttpReply> refused = RefusedBy(access_, head); refused.has_value()) return refused;
    if (head.path != "/metrics") {
      return TextError(absl::NotFoundError(absl::StrCat("there is no ", head.path, ", only /metrics")), 404);
    }
    if (head.method == "GET") return std::nullopt;
    HttpReply reply =
        TextError(absl::InvalidArgumentError(absl::StrCat(head.method, " is not allowed, only GET")), 405);
    reply.headers["Allow"] = "GET";
    return reply;
  }
  bool IsControl(const HttpRequest& /*head*/) override { return false; }
  HttpReply Answer(HttpRequest& /*request*/, const std::stop_token& /*gone*/) override {
    HttpReply reply;
    reply.content_type = kMetricsContentType;
    reply.body = MetricsText(collect_());
    return reply;
  }

 private:
  const HttpAccess access_;
  const std::function<MetricFamilies()> collect_;
  std::unique_ptr<HttpServer> server_;  // ends before what it calls
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const HttpAccessFields& fields,
                                                                    std::function<MetricFamilies()> collect) {
  QUARTET_ASSIGN_OR_RETURN(HttpAccess access, HttpAccess::Read(fields));
  auto server = std::make_unique<Server>(std::move(access), std::move(collect));
  QUARTET_RETURN_IF_ERROR(server->Start());
  return server;
}

HttpReply TextError(const absl::Status& status, int http_status) {
  HttpReply reply;
  reply.status = http_status;
  reply.content_type = "text/plain; charset=utf-8";
  reply.body = absl::StrCat(status.message(), "\n");
  return reply;
}

std::optional<HttpReply> RefusedBy(const HttpAccess& access, const HttpRequest& head) {
  const absl::Status allowed = access.Check(head);
  if (allowed.ok()) return std::nullopt;
  const bool wants_key = absl::IsUnauthenticated(allowed);
  HttpReply reply = TextError(allowed, wants_key ? 401 : 403);
  if (wants_key) reply.headers["WWW-Authenticate"] = "Basic realm=\"quartet\"";
  return reply;
}

}  // namespace quartet
