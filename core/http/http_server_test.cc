#include "core/http/http_server.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
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
  std::atomic<int> told{0};   // replies of which is known whether they were delivered
  std::atomic<int> delivered{0};
  std::function<void()> before_reply;  // of "/short" and "/parts"

  std::optional<HttpReply> Refuse(const HttpRequest& /*head*/) override {
    ++begun;
    return std::nullopt;
  }
  bool IsControl(const HttpRequest& head) override { return head.path == "/"; }
  HttpReply Answer(HttpRequest& request, const std::stop_token& /*gone*/) override {
    HttpReply reply;
    if (request.path == "/") return reply;
    reply.when_sent = [this](bool was_delivered) {
      delivered += static_cast<int>(was_delivered);
      ++told;
    };
    if (request.path == "/short" || request.path == "/parts") {
      before_reply();
      reply.body = "hi";
      if (request.path == "/parts") {
        reply.next_piece = [this, parts = 3]() mutable -> std::optional<std::string> {
          if (parts-- == 0) return std::nullopt;
          before_reply();
          return "hi";
        };
      }
      return reply;
    }
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

// Slower than that for a connection on which nothing moves, but without end.
TEST_F(HttpServerTest, CutsOffWhoeverSendsAHeadByteByByte) {
  Start({.listen = {"127.0.0.1", 0}, .head_time = std::chrono::seconds(1)});
  for (const bool after_another : {false, true}) {
    HttpClient slow(port());
    if (after_another) {
      slow.Ask("GET", "/");
      EXPECT_EQ(slow.Read().status, 200);
    }
    slow.Send("GET / HTTP/1.1\r\nHost: ");
    while (!slow.IsClosed()) {
      slow.Send("x");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ExpectOthersAreAnswered();
  }
}

// What whoever stands between would take for one request is one, or none.
TEST_F(HttpServerTest, RefusesWhatEndsARequestWhereOthersWouldNotEndIt) {
  using std::string_literals::operator""s;
  Start({.listen = {"127.0.0.1", 0}});
  const std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n";
  for (const std::string& begin :
       {"GET / HTTP/1.1\r\nHost: h\r\n: x\r\n"s, "GET / HTTP/1.1\r\nHost: h\r\n:\r\n"s,
        "GET / HTTP/1.1\r\n: x\r\nHost: h\r\n\r\n"s, "GET / HTTP/1.1\r\n: x\r\n\r\n"s, "GET / HTTP/1.1\nHost: h\n:\n"s,
        "GET / HTTP/1.1\nHost: h\n:\r\n"s, "GET / HTTP/1.1\r\nHost: h\r\nContent-Length : 3\r\n\r\n"s,
        "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n"s, "GET / HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n"s,
        "GET / HTTP/1.1\r\nHost: h\0\r\n\r\n"s, "GET / HTTP/1.1\r\nHost: h\r\nA: b\rContent-Length: 3\r\n\r\n"s,
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\0 9\r\n\r\n"s, "GET /\0x HTTP/1.1\r\nHost: h\r\n\r\n"s,
        "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n"s, "GET /%00x HTTP/1.1\r\nHost: h\r\n\r\n"s, chunked + "A: b\r\n\r\n",
        chunked + "A: b\r\n: x\r\n", chunked + ": x\r\n\r\n"}) {
    HttpClient client(port());
    client.Send(begin + "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_EQ(client.Read().status, 400) << begin;
    EXPECT_EQ(client.Read().status, 0) << begin;
    EXPECT_EQ(handler_.made, 0) << begin;
  }
}

TEST_F(HttpServerTest, TakesNoLengthForNone) {
  Start({.listen = {"127.0.0.1", 0}});
  for (const std::string method : {"GET", "POST", "PUT"}) {
    for (const char* length : {"9223372036854775807", "9223372036854775808", "18446744073709551615"}) {
      HttpClient client(port());
      client.Send(method + " / HTTP/1.1\r\nHost: h\r\nContent-Length: " + length +
                  "\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n");
      EXPECT_EQ(client.Read().status, 413) << method << length;
      EXPECT_EQ(client.Read().status, 0) << method << length;
      EXPECT_EQ(handler_.made, 0) << method << length;
    }
  }
}

TEST_F(HttpServerTest, TakesHeadsAsClientsWriteThem) {
  Start({.listen = {"127.0.0.1", 0}});
  for (const std::string request :
       {"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\n\n", "GET / HTTP/1.1\nHost: h\nA: b\n\n",
        "\r\nGET /?a=%20&b HTTP/1.1\r\nHost:h\r\nA: \t b \t \r\nB:\r\nC: \r\n\r\n",
        "GET %2f HTTP/1.1\r\nHost: h\r\nA: \xc3\xa4 : \"\r\nX_!#$%&'*+-.^`|~: 1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n"}) {
    HttpClient whole(port()), in_parts(port());
    for (int i = 0; i < 2; ++i) {
      whole.Send(request);
      EXPECT_EQ(whole.Read().status, 200) << request;
    }
    for (size_t i = 0; i < request.size(); ++i) {
      in_parts.Send(request.substr(i, 1));
      // So that it comes by itself.
      if (i + 2 >= request.size()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_EQ(in_parts.Read().status, 200) << request;
  }
}

TEST_F(HttpServerTest, TellsThatAReplyWasDelivered) {
  handler_.before_reply = [] {};
  Start({.listen = {"127.0.0.1", 0}});
  int told = 0;
  for (const std::string path : {"/short", "/parts", "/long"}) {
    HttpClient client(port());
    for (int i = 0; i < 2; ++i) {
      client.Ask("GET", path);
      EXPECT_EQ(client.Read().status, 200);
      ++told;
    }
    // Whoever has read it may leave at once.
    client.Close();
    WaitUntil([&] { return handler_.told == told; });
    EXPECT_EQ(handler_.delivered, told);
  }
}

TEST_F(HttpServerTest, TellsThatAClientLeftBeforeItsReply) {
  std::promise<void> asked, left;
  handler_.before_reply = [&, waits = left.get_future().share(), first = true]() mutable {
    if (std::exchange(first, false)) asked.set_value();
    waits.wait();
  };
  Start({.listen = {"127.0.0.1", 0}});
  HttpClient client(port());
  client.Ask("GET", "/short");
  asked.get_future().wait();
  client.Close();
  left.set_value();
  WaitUntil([&] { return handler_.told == 1; });
  EXPECT_EQ(handler_.delivered, 0);
}

TEST_F(HttpServerTest, TellsThatAClientLeftAmidItsReply) {
  Start({.listen = {"127.0.0.1", 0}});
  int told = 0;
  for (const char* path : {"/long", "/pieces"}) {
    HttpClient client(port());
    client.Ask("GET", path);
    EXPECT_EQ(client.ReadHead().status, 200);
    client.Close();
    ++told;
    WaitUntil([&] { return handler_.told == told; });
  }
  EXPECT_EQ(handler_.delivered, 0);
}

TEST_F(HttpServerTest, TellsThatAClientLeftBetweenPieces) {
  std::promise<void> begun, left;
  handler_.before_reply = [&, waits = left.get_future().share(), calls = 0]() mutable {
    if (++calls < 4) return;  // the last piece
    begun.set_value();
    waits.wait();
  };
  Start({.listen = {"127.0.0.1", 0}});
  HttpClient client(port());
  client.Ask("GET", "/parts");
  begun.get_future().wait();
  client.Close();
  left.set_value();
  WaitUntil([&] { return handler_.told == 1; });
  EXPECT_EQ(handler_.delivered, 0);
}

TEST_F(HttpServerTest, TellsOfRepliesThatItsEndCuts) {
  Start({.listen = {"127.0.0.1", 0}});
  HttpClient client(port());
  client.Ask("GET", "/long");
  EXPECT_EQ(client.ReadHead().status, 200);
  server_.reset();
  EXPECT_EQ(handler_.told, 1);
  EXPECT_EQ(handler_.delivered, 0);
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
