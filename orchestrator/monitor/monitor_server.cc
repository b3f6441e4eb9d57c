#include "orchestrator/monitor/monitor_server.h"

#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/http/http_access.h"
#include "core/metrics/metrics_server.h"
#include "orchestrator/monitor/run_figures.h"
#include "orchestrator/page/run_page.h"

namespace quartet {
namespace {

// A page that is asked for again within so long, or so many times as long as it took to make, is the same.
constexpr absl::Duration kFresh = absl::Seconds(2);
constexpr int kPauses = 20;

class Server final : public MonitorServer, public HttpHandler {
 public:
  Server(HttpAccess access, const std::string& run_dir)
      : access_(std::move(access)), page_(run_dir), figures_(run_dir) {}

  absl::Status Start() {
    HttpServerOptions options;
    options.not_yours = TextError(access_.not_yours(), 403);
    options.max_requests = 16;
    QUARTET_ASSIGN_OR_RETURN(server_, access_.Start(std::move(options), this));
    return absl::OkStatus();
  }

  std::string url() const override { return access_.scheme() + server_->address().ToString() + "/"; }

  std::optional<HttpReply> Refuse(const HttpRequest& head) override {
    if (std::optional<HttpReply> refused = RefusedBy(access_, head); refused.has_value()) return refused;
    if (head.path != "/" && head.path != "/metrics") {
      return TextError(absl::NotFoundError(absl::StrCat("there is no ", head.path, ", only / and /metrics")), 404);
    }
    if (head.method == "GET") return std::nullopt;
    HttpReply reply =
        TextError(absl::InvalidArgumentError(absl::StrCat(head.method, " is not allowed, only GET")), 405);
    reply.headers["Allow"] = "GET";
    return reply;
  }
  bool IsControl(const HttpRequest& /*head*/) override { return false; }

  HttpReply Answer(HttpRequest& request, const std::stop_token& /*gone*/) override {
    return request.path == "/" ? Page() : Figures();
  }

 private:
  HttpReply Page() {
    const std::lock_guard lock(page_mutex_);
    const absl::Time begin = absl::Now();
    if (html_.empty() || begin > fresh_until_) {
      if (const absl::Status read = page_.Read(); !read.ok()) return TextError(read, 500);
      html_ = page_.Html();
      const absl::Time end = absl::Now();
      fresh_until_ = end + std::max(kFresh, kPauses * (end - begin));
    }
    HttpReply reply;
    reply.content_type = "text/html; charset=utf-8";
    reply.headers["Cache-Control"] = "no-store";
    reply.body = html_;
    return reply;
  }

  HttpReply Figures() {
    MetricFamilies families;
    {
      const std::lock_guard lock(figures_mutex_);
      if (const absl::Status added = figures_.Add(&families); !added.ok()) return TextError(added, 500);
    }
    AddProcessFigures(&families);
    HttpReply reply;
    reply.content_type = kMetricsContentType;
    reply.body = MetricsText(families);
    return reply;
  }

  const HttpAccess access_;
  std::mutex page_mutex_;
  // Guarded by page_mutex_.
  RunPage page_;
  std::string html_;
  absl::Time fresh_until_;
  std::mutex figures_mutex_;
  RunFigures figures_;                  // guarded by figures_mutex_
  std::unique_ptr<HttpServer> server_;  // ends before what it calls
};

}  // namespace

absl::StatusOr<std::unique_ptr<MonitorServer>> MonitorServer::Start(const RunConfig& config,
                                                                    const std::string& run_dir) {
  const MonitorConfig& monitor = config.monitor();
  QUARTET_ASSIGN_OR_RETURN(HttpAccess access, HttpAccess::Read({.section = "monitor",
                                                                .listen = monitor.listen(),
                                                                .api_key_file = monitor.api_key_file(),
                                                                .cert_file = monitor.cert_file(),
                                                                .key_file = monitor.key_file(),
                                                                .any_user = config.services().allow_other_users()}));
  auto server = std::make_unique<Server>(std::move(access), run_dir);
  QUARTET_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace quartet
