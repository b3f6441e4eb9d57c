#include "core/http/http_server.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
  std::atomic<int> made{0};   // replies that take long to send
  std::atomic<int> held{0};   // those that are being sent

  std::optional<HttpReply> Refuse(const HttpRequest& /*head*/) override {
    ++begun;
    return std::nullopt;
  }
  bool IsControl(const HttpRequest& head) override { return head.path == "/"; }
  HttpReply Answer(HttpRequest& request, const std::stop_token& /*gone*/) override {
    HttpReply reply;
    if (request.path == "/") return reply;
    ++held;
    ++made;
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

TEST_F(HttpServerTest, CutsOffWhoeverTakesAReplyTooSlowlyThoughNobodyElseAsks) {
  Start({.listen = {"127.0.0.1", 0},
         .max_requests = 1,
         .body_time = std::chrono::seconds(0),
         .body_bytes_per_second = kLong + 1});
  // There is one place, which the one before has had.
  int made = 0;
  for (const char* path : {"/long", "/pieces", "/long"}) {
    HttpClient slow(port());
    slow.Ask("GET", path);
    ++made;
    WaitUntil([&] { return handler_.made == made && handler_.held == 0; });
  }
}

TEST_F(HttpServerTest, CutsOffWhoeverSendsABodyTooSlowly) {
  Start({.listen = {"127.0.0.1", 0}, .body_time = std::chrono::seconds(0)});
  HttpClient slow(port());
  slow.Send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nsome");
  EXPECT_EQ(slow.Read().status, 0) << "closed";
  EXPECT_EQ(handler_.begun, 1);
  ExpectOthersAreAnswered();
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
