#include "core/http/page_server.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

class Server final : public PageServer, public HttpHandler {
 public:
  Server(HttpAccess access, Pages pages) : access_(std::move(access)), pages_(std::move(pages)) {}

  absl::Status Start() {
    HttpServerOptions options;
    options.not_yours = TextError(access_.not_yours(), 403);
    options.malformed = TextError(absl::InvalidArgumentError(kMalformedHeaders), 400);
    options.max_requests = 16;
    QUARTET_ASSIGN_OR_RETURN(server_, access_.Start(std::move(options), this));
    return absl::OkStatus();
  }

  std::string url() const override { return access_.scheme() + server_->address().ToString(); }

  std::optional<HttpReply> Refuse(const HttpRequest& head) override {
    if (const absl::Status allowed = access_.Check(head); absl::IsUnauthenticated(allowed)) {
      HttpReply reply = TextError(allowed, 401);
      reply.headers["WWW-Authenticate"] = "Basic realm=\"quartet\"";  // a browser asks its user
      return reply;
    } else if (!allowed.ok()) {
      return TextError(allowed, 403);
    }
    if (!pages_.contains(head.path)) {
      std::vector<std::string> paths;
      for (const auto& [path, page] : pages_) paths.push_back(path);
      return TextError(
          absl::NotFoundError(absl::StrCat("there is no ", head.path, ", only ", absl::StrJoin(paths, " and "))), 404);
    }
    if (head.method == "GET") return std::nullopt;
    HttpReply reply =
        TextError(absl::InvalidArgumentError(absl::StrCat(head.method, " is not allowed, only GET")), 405);
    reply.headers["Allow"] = "GET";
    return reply;
  }
  bool IsControl(const HttpRequest& /*head*/) override { return false; }
  HttpReply Answer(HttpRequest& request, const std::stop_token& /*gone*/) override { return pages_.at(request.path)(); }

 private:
  const HttpAccess access_;
  const Pages pages_;
  std::unique_ptr<HttpServer> server_;  // ends before what it calls
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(const HttpAccessFields& fields, Pages pages) {
  QUARTET_ASSIGN_OR_RETURN(HttpAccess access, HttpAccess::Read(fields));
  auto server = std::make_unique<Server>(std::move(access), std::move(pages));
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

}  // namespace quartet
