// The front under more than it takes: requests, connections, bodies.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/http/testing/http_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rollout/http/openai_front.h"
#include "rollout/http/testing/played_rollout.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// Until `condition`, which comes about by itself.
template <typename Condition>
void WaitUntil(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

class Load {
 public:
  explicit Load(int64_t max_requests, int64_t max_reply_bytes = 256 * kMiB)
      : rollout(/*max_waiting=*/int64_t{8} * max_requests, /*max_calls=*/max_requests + max_requests / 3,
                max_reply_bytes) {
    HttpConfig config;
    config.set_listen("127.0.0.1:0");
    config.set_served_model_name("tiny");
    config.set_max_bodies_bytes(20 * kMiB);
    auto started = HttpFront::Start(config, &rollout);
    if (!started.ok()) throw std::runtime_error(started.status().ToString());
    front_ = *std::move(started);
    port = std::atoi(front_->address().substr(front_->address().rfind(':') + 1).c_str());
  }
  void Pause() {
    EXPECT_TRUE(rollout.dispatcher().Pause(PauseRequest::KEEP, [] { return false; }).ok());
  }
  int StatusOf(const std::string& path) const { return HttpAsk(port, "GET", path).status; }
  void ExpectControl() const {
    for (const char* path : {"/health", "/metrics", "/v1/models"}) EXPECT_EQ(StatusOf(path), 200) << path;
  }

  PlayedRollout rollout;
  int port = 0;

 private:
  std::unique_ptr<HttpFront> front_;
};

TEST(HttpLoad, AnswersHealthAndRefusesTheRestWhileAsManyRequestsWaitAsMay) {
  constexpr int kMost = 768;
  Load load(kMost);
  load.Pause();
  std::deque<HttpClient> clients;
  for (int i = 0; i < kMost; ++i) {
    clients.emplace_back(load.port).Ask("POST", "/v1/completions", json{{"prompt", "hi"}, {"max_tokens", 2}}.dump());
  }
  load.ExpectControl();
  WaitUntil([&] { return load.rollout.asked == kMost; });
  for (int i = 0; i < 100; ++i) {
    const HttpAnswer refused = HttpAsk(load.port, "POST", "/v1/completions", json{{"prompt", "hi"}}.dump());
    ASSERT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
    EXPECT_THAT(refused.body, HasSubstr("768 requests wait or run; rollout.max_calls has no place for more of them"));
  }
  load.ExpectControl();
  load.rollout.dispatcher().Resume();
  for (HttpClient& client : clients) {
    const HttpAnswer answer = client.Read();
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(json::parse(answer.body)["choices"][0]["text"], " a b");
  }
  load.ExpectControl();
}

TEST(HttpLoad, ClosesIdleConnectionsWhereANewOneHasNoPlace) {
  Load load(9);
  load.Pause();
  std::deque<HttpClient> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.emplace_back(load.port).Ask("POST", "/v1/completions", json{{"prompt", "hi"}, {"max_tokens", 2}}.dump());
  }
  WaitUntil([&] { return load.rollout.asked == 8; });
  std::deque<HttpClient> idle;
  for (int i = 0; i < 400; ++i) {
    idle.emplace_back(load.port);
    if (i % 2 == 0) idle.back().Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le");
    if (i % 50 == 0) load.ExpectControl();
  }
  load.ExpectControl();
  load.rollout.dispatcher().Resume();
  for (HttpClient& client : waiting) EXPECT_EQ(client.Read().status, 200);
}

// Half a million lists, which take a hundred times their text.
TEST(HttpLoad, WeighsABodyByWhatItBecomes) {
  Load load(8);
  std::string body = "{\"prompt\":[[1]";
  for (int i = 0; i < 500'000; ++i) body += ",[1]";
  body += "]}";
  const HttpAnswer refused = HttpAsk(load.port, "POST", "/v1/completions", body);
  EXPECT_EQ(refused.status, 413);
  EXPECT_THAT(refused.body, HasSubstr("allowed: at most rollout.http.max_bodies_bytes = 20971520"));
  HttpClient chunked(load.port);
  chunked.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                            "Transfer-Encoding: chunked\r\n\r\n", absl::Hex(body.size()), "\r\n", body,
                            "\r\n0\r\n\r\n"));
  EXPECT_EQ(chunked.Read().body, refused.body);
  EXPECT_EQ(HttpAsk(load.port, "POST", "/v1/completions", "{\"prompt\":[[1],[1]],\"max_tokens\":1}").status, 200);
}

TEST(HttpLoad, WeighsAnswersByTheTextThatIsMadeOfThem) {
  Load load(8, /*max_reply_bytes=*/kMiB);
  const auto ask = [&](bool stream, int64_t bytes) {
    return HttpAsk(
        load.port, "POST", "/v1/completions",
        json{
            {"prompt", "hi" + std::string(bytes, 'x')}, {"echo", true}, {"stream", stream}, {"n", 2}, {"max_tokens", 1}}
            .dump());
  };
  const std::string said = "answers that their clients have yet to fetch take rollout.http.max_bodies_bytes = 1048576";
  for (const bool stream : {false, true}) {
    SCOPED_TRACE(stream);
    HttpAnswer refused = ask(stream, 600'000);
    // A client that fetches as fast as answers are made is given all of a stream.
    for (int again = 0; again < 10 && stream && refused.body.find(said) == std::string::npos; ++again) {
      refused = ask(stream, 600'000);
    }
    EXPECT_EQ(refused.status, stream ? 200 : 429);
    EXPECT_THAT(refused.body, HasSubstr(said));
    EXPECT_LT(refused.body.size(), 1'000'000);
    for (int i = 0; i < 4; ++i) {
      const HttpAnswer answer = ask(stream, 200'000);
      EXPECT_EQ(answer.status, 200);
      EXPECT_GT(answer.body.size(), 400'000);
      EXPECT_EQ(answer.body.find(said), std::string::npos) << "what others had is free";
    }
  }
}

// The log-probabilities of one token take 6,000 bytes as JSON objects, in a stream as in a whole answer.
TEST(HttpLoad, WeighsAnswersByTheJsonThatTheyAreMadeFrom) {
  for (const bool stream : {false, true}) {
    SCOPED_TRACE(stream);
    Load load(8, /*max_reply_bytes=*/4'000);
    const auto ask = [&](int logprobs) {
      const json body = {{"prompt", "hi"}, {"stream", stream}, {"logprobs", logprobs}, {"max_tokens", 1}};
      return HttpAsk(load.port, "POST", "/v1/completions", body.dump()).body;
    };
    EXPECT_THAT(ask(1), HasSubstr("\"finish_reason\":\"length\""));
    EXPECT_THAT(ask(20), HasSubstr("answers that their clients have yet to fetch"));
  }
}

TEST(HttpLoad, BoundsTheBodiesOfAllRequestsTogether) {
  Load load(8);
  const std::string body = json{{"prompt", "hi"}, {"max_tokens", 2}}.dump() + std::string(12 * kMiB, ' ');
  // One byte more than what is left beside the 11 MiB below. It is no JSON, which would take its time to read.
  const std::string junk(9 * kMiB + 1, 'x');
  const auto ask = [&] { return HttpAsk(load.port, "POST", "/v1/completions", junk); };
  // Whether it would be taken, which takes no room from what is coming.
  const auto has_room = [&] {
    HttpClient asking(load.port);
    asking.Send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Expect: 100-continue\r\nContent-Length: " +
        std::to_string(junk.size()) + "\r\n\r\n");
    return asking.ReadHead().status == 100;
  };
  EXPECT_EQ(ask().status, 400);
  {
    HttpClient slow(load.port);
    slow.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, 11 * kMiB));
    WaitUntil([&] { return !has_room(); });  // so much has come
    const HttpAnswer refused = ask();
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
    EXPECT_THAT(refused.body, HasSubstr("rollout.http.max_bodies_bytes = 20971520 bytes"));
    // One whose length is not said is refused as it comes.
    HttpClient chunked(load.port);
    chunked.Send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\nC00000\r\n" +
        std::string(12 * kMiB, ' ') + "\r\n0\r\n\r\n");
    EXPECT_EQ(chunked.Read().status, 503);
    load.ExpectControl();
    slow.Send(body.substr(11 * kMiB));
    EXPECT_EQ(slow.Read().status, 200);
  }
  EXPECT_EQ(ask().status, 400);
  // What only waits for a pause's end counts, too; what has begun does not.
  load.Pause();
  HttpClient waits(load.port);
  waits.Ask("POST", "/v1/completions", body);
  WaitUntil([&] { return !has_room(); });
  EXPECT_EQ(ask().status, 503);
  load.rollout.answers = false;
  load.rollout.dispatcher().Resume();
  WaitUntil([&] { return ask().status == 400; });
}

}  // namespace
}  // namespace quartet
