#include "core/http/http_server.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "core/http/testing/http_client.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

constexpr int64_t kLong = 64 << 20;  // more than sockets hold

// Until `condition`, which comes about by itself.
template <typename Condition>
void WaitUntil(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Answers "/long" with a long text, "/pieces" with pieces of as much without end, and anything else at once.
class Handler final : public HttpHandler {
 public:
  std::atomic<int> begun{0};  // requests
  std::atomic<int> held{0};   // replies that are being sent

  std::optional<HttpReply> Refuse(const HttpRequest& /*head*/) override {
    ++begun;
    return std::nullopt;
  }
  bool IsControl(const HttpRequest& head) override { return head.path == "/"; }
  HttpReply Answer(HttpRequest& request, const std::stop_token& /*gone*/) override {
    HttpReply reply;
    if (request.path == "/") return reply;
    ++held;
    std::shared_ptr<void> counted(this, [](void* self) { --static_cast<Handler*>(self)->held; });
    if (request.path == "/pieces") {
      reply.next_piece = [counted] { return std::string(kLong, 'x'); };
    } else {
      reply.body = std::string(kLong, 'x');
      reply.until_sent = std::move(counted);
    }
    return reply;
  }
};

class HttpServerTest : public testing::Test {
 protected:
  void Start(const HttpServerOptions& options) {
    auto started = HttpServer::Start(options, &handler_);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  int port() const { return server_->address().port; }
  void ExpectOthersAreAnswered() { EXPECT_EQ(HttpAsk(port(), "GET", "/").status, 200); }

  Handler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, CutsOffWhoeverTakesAReplyTooSlowlyOnceOthersAsk) {
  Start({.listen = {"127.0.0.1", 0},
         .max_requests = 1,
         .body_time = std::chrono::seconds(0),
         .body_bytes_per_second = kLong + 1});
  for (const char* path : {"/long", "/pieces"}) {
    HttpClient slow(port());
    slow.Ask("GET", path);
    EXPECT_EQ(slow.ReadHead().status, 200);
    WaitUntil([&] {
      ExpectOthersAreAnswered();
      return handler_.held == 0;
    });
  }
  // Its place is free, too.
  HttpClient next(port());
  next.Ask("GET", "/long");
  EXPECT_EQ(next.ReadHead().status, 200);
}

TEST_F(HttpServerTest, CutsOffWhoeverSendsABodyTooSlowlyOnceOthersAsk) {
  Start({.listen = {"127.0.0.1", 0}, .body_time = std::chrono::seconds(0)});
  HttpClient slow(port());
  slow.Send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nsome");
  WaitUntil([&] { return handler_.begun == 1; });
  ExpectOthersAreAnswered();
  EXPECT_EQ(slow.Read().status, 0) << "closed";
}

TEST_F(HttpServerTest, LeavesRepliesTheirTime) {
  Start({.listen = {"127.0.0.1", 0}});
  HttpClient reader(port());
  reader.Ask("GET", "/long");
  WaitUntil([&] { return handler_.held == 1; });
  for (int i = 0; i < 3; ++i) ExpectOthersAreAnswered();
  EXPECT_EQ(reader.Read().body.size(), kLong);
}

}  // namespace
}  // namespace quartet
