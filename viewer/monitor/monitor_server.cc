#include "viewer/monitor/monitor_server.h"

#include <algorithm>
#include <mutex>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/http/page_server.h"
#include "core/prometheus/families.h"
#include "viewer/monitor/run_figures.h"
#include "viewer/page/run_page.h"

namespace quartet {
namespace {

// A page that is asked for again within so long, or so many times as long as it took to make, is the same.
constexpr absl::Duration kFresh = absl::Seconds(2);
constexpr int kPauses = 20;

class Server final : public MonitorServer {
 public:
  explicit Server(const std::string& run_dir) : page_(run_dir), figures_(run_dir) {}

  absl::Status Start(const HttpAccessFields& fields) {
    QUARTET_ASSIGN_OR_RETURN(server_, PageServer::Start(fields, {{"/", [this] { return Page(); }},
                                                                 {"/metrics", [this] { return Figures(); }}}));
    return absl::OkStatus();
  }

  std::string url() const override { return server_->url() + "/"; }

 private:
  HttpReply Page() {
    const std::lock_guard lock(page_mutex_);
    const Deadline::Clock::time_point begin = Deadline::Clock::now();
    if (html_.empty() || fresh_until_.passed()) {
      if (const absl::Status read = page_.Read(); !read.ok()) return TextError(read, 500);
      html_ = page_.Html();
      fresh_until_ = Deadline::In(std::max(kFresh, kPauses * absl::FromChrono(Deadline::Clock::now() - begin)));
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
    return MetricsReply(families);
  }

  std::mutex page_mutex_;
  // Guarded by page_mutex_.
  RunPage page_;
  std::string html_;
  Deadline fresh_until_ = Deadline::Never();
  std::mutex figures_mutex_;
  RunFigures figures_;                  // guarded by figures_mutex_
  std::unique_ptr<PageServer> server_;  // ends before what it calls
};

}  // namespace

absl::StatusOr<std::unique_ptr<MonitorServer>> MonitorServer::Start(const RunConfig& config,
                                                                    const std::string& run_dir) {
  const MonitorConfig& monitor = config.monitor();
  auto server = std::make_unique<Server>(run_dir);
  QUARTET_RETURN_IF_ERROR(server->Start({.section = "monitor",
                                         .listen = monitor.listen(),
                                         .api_key_file = monitor.api_key_file(),
                                         .cert_file = monitor.cert_file(),
                                         .key_file = monitor.key_file(),
                                         .any_user = config.services().allow_other_users()}));
  return server;
}

}  // namespace quartet
