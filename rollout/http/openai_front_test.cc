// The front over real sockets, before a rollout that is played.

#include "rollout/http/openai_front.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/http/testing/http_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rollout/http/testing/played_rollout.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Front : public ::testing::Test {
 protected:
  void Start(const std::string& api_key_file = "", bool any_user = false) {
    HttpConfig config;
    config.set_listen("127.0.0.1:0");
    config.set_served_model_name("org/tiny");
    config.set_api_key_file(api_key_file);
    config.set_max_bodies_bytes(100 << 20);
    auto started = HttpFront::Start(config, &rollout_, any_user);
    ASSERT_TRUE(started.ok()) << started.status();
    front_ = *std::move(started);
    port_ = std::atoi(front_->address().substr(front_->address().rfind(':') + 1).c_str());
  }
  HttpAnswer Post(const json& body, const std::string& path = "/v1/completions") {
    return HttpAsk(port_, "POST", path, body.dump());
  }
  static json ErrorOf(const HttpAnswer& answer) { return json::parse(answer.body).at("error"); }
  // Until `condition`, which comes about by itself.
  template <typename Condition>
  static void WaitUntil(Condition condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  PlayedRollout rollout_;
  std::unique_ptr<HttpFront> front_;
  int port_ = 0;
};

TEST_F(Front, CompletesAndChats) {
  Start();
  const HttpAnswer completion = Post({{"prompt", {"hi", "hi hi"}}, {"n", 2}, {"max_tokens", 3}, {"model", "org/tiny"}});
  EXPECT_EQ(completion.status, 200);
  EXPECT_EQ(completion.headers.at("content-type"), "application/json");
  const json body = json::parse(completion.body);
  ASSERT_EQ(body.at("choices").size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], " a b c");
  }
  EXPECT_EQ(body.at("system_fingerprint"), "policy_version_7");
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 12);
  const HttpAnswer chat =
      Post({{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})}}, "/v1/chat/completions");
  EXPECT_EQ(chat.status, 200);
  EXPECT_EQ(json::parse(chat.body)["choices"][0]["message"]["content"], " a b c d e f g h");
}

TEST_F(Front, StreamsInChunks) {
  Start();
  HttpClient client(port_);
  client.Ask("POST", "/v1/completions", json{{"prompt", "hi"}, {"max_tokens", 2}, {"stream", true}}.dump());
  const HttpAnswer head = client.ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(head.headers.at("transfer-encoding"), "chunked");
  std::string text;
  while (const std::optional<std::string> chunk = client.ReadChunk()) text += *chunk;
  EXPECT_THAT(text, HasSubstr("\"text\":\" a\""));
  EXPECT_THAT(text, HasSubstr("\"text\":\" b\""));
  EXPECT_TRUE(text.ends_with("\"stop_reason\":null}]}\n\ndata: [DONE]\n\n")) << text;
}

TEST_F(Front, AnswersSeveralRequestsOnOneConnection) {
  Start();
  HttpClient client(port_);
  for (int i = 0; i < 3; ++i) {
    client.Ask("POST", "/v1/completions", json{{"prompt", "hi"}, {"stream", i == 1}}.dump());
    EXPECT_EQ(client.Read().status, 200);
  }
}

TEST_F(Front, GivesUpWhenTheClientLeaves) {
  rollout_.answers = false;
  Start();
  for (const bool stream : {false, true}) {
    HttpClient client(port_);
    client.Ask("POST", "/v1/completions", json{{"prompt", "hi"}, {"n", 4}, {"stream", stream}}.dump());
    WaitUntil([&] { return rollout_.dispatcher().calls() == 1; });
    if (stream) client.ReadHead();
    client.Close();
    WaitUntil([&] { return rollout_.cancelled == (stream ? 2 : 1); });
  }
}

TEST_F(Front, GivesUpARequestThatWaitsForThePausesEnd) {
  Start();
  ASSERT_TRUE(rollout_.dispatcher().Pause(PauseRequest::KEEP, [] { return false; }).ok());
  HttpClient left(port_);
  left.Ask("POST", "/v1/completions", json{{"prompt", "hi"}}.dump());
  WaitUntil([&] { return rollout_.dispatcher().calls() == 1; });
  left.Close();
  HttpClient waits(port_);
  waits.Ask("POST", "/v1/completions", json{{"prompt", "hi"}}.dump());
  rollout_.dispatcher().Resume();
  EXPECT_EQ(waits.Read().status, 200);
}

TEST_F(Front, RefusesMoreThanMayWait) {
  rollout_.answers = false;
  Start();
  HttpClient first(port_);
  first.Ask("POST", "/v1/completions", json{{"prompt", "hi"}, {"n", 8}, {"stream", true}}.dump());
  first.ReadHead();  // it has begun
  for (const bool stream : {false, true}) {
    const HttpAnswer answer = Post({{"prompt", "hi"}, {"stream", stream}});
    EXPECT_EQ(answer.status, 429);
    EXPECT_EQ(answer.headers.at("retry-after"), "1");
    EXPECT_EQ(ErrorOf(answer).at("code"), "rate_limit_exceeded");
    EXPECT_THAT(ErrorOf(answer).at("message"), HasSubstr("rollout.max_waiting"));
  }
  // What could never run is the request's own fault.
  EXPECT_EQ(Post({{"prompt", "hi"}, {"n", 9}}).status, 400);
  EXPECT_EQ(Post({{"prompt", std::vector<int>(21, 1)}, {"max_tokens", 1}}).status, 400);
}

TEST_F(Front, TellsOfAFailure) {
  rollout_.failure = absl::InternalError("logits are not finite");
  Start();
  const HttpAnswer answer = Post({{"prompt", "hi"}});
  EXPECT_EQ(answer.status, 500);
  EXPECT_THAT(ErrorOf(answer).at("message"), HasSubstr("logits are not finite"));
  const HttpAnswer stream = Post({{"prompt", "hi"}, {"stream", true}, {"max_tokens", 1}});
  EXPECT_EQ(stream.status, 200);  // it had begun
  EXPECT_THAT(stream.body, HasSubstr("data: {\"error\":{\"message\":\"rank 0: logits are not finite\""));
}

TEST_F(Front, EndsWithTheService) {
  rollout_.answers = false;
  Start();
  HttpClient client(port_);
  client.Ask("POST", "/v1/completions", json{{"prompt", "hi"}}.dump());
  HttpClient idle(port_);
  HttpClient stream(port_);
  stream.Ask("POST", "/v1/completions", json{{"prompt", "hi"}, {"stream", true}}.dump());
  stream.ReadHead();
  rollout_.Close();
  front_.reset();
  EXPECT_THAT(client.Read().body, ::testing::AnyOf("", HasSubstr("the service is stopping")));
}

TEST_F(Front, SaysWhatIsWrongWithARequest) {
  Start();
  EXPECT_EQ(Post({{"prompt", "hi"}, {"temperature", -1}}).status, 400);
  EXPECT_EQ(ErrorOf(Post({{"prompt", "hi"}, {"temperature", -1}})).at("param"), "temperature");
  EXPECT_EQ(Post({{"prompt", "hi"}, {"model", "gpt"}}).status, 404);
  EXPECT_EQ(HttpAsk(port_, "POST", "/v1/completions", "{").status, 400);
  EXPECT_EQ(HttpAsk(port_, "POST", "/v1/completions", "{}", {{"Content-Type", "text/plain"}}).status, 415);
  const std::string body = json{{"prompt", "hi"}}.dump();
  const HttpAnswer coded = HttpAsk(port_, "POST", "/v1/completions", body, {{"Content-Encoding", "gzip"}});
  EXPECT_EQ(coded.status, 415);
  EXPECT_EQ(coded.headers.at("accept-encoding"), "identity");
  EXPECT_THAT(coded.body, HasSubstr("the header Content-Encoding is \\\"gzip\\\"; allowed: none, or identity"));
  EXPECT_EQ(HttpAsk(port_, "POST", "/v1/completions", body, {{"Content-Encoding", "Identity"}}).status, 200);
  EXPECT_EQ(HttpAsk(port_, "GET", "/v1/embeddings").status, 404);
  const HttpAnswer get = HttpAsk(port_, "GET", "/v1/completions");
  EXPECT_EQ(get.status, 405);
  EXPECT_EQ(get.headers.at("allow"), "POST");
  EXPECT_EQ(HttpAsk(port_, "GET", "/v1/models", "", {{"Host", "evil.example:80"}}).status, 403);
  HttpClient endless(port_);
  endless.Ask("POST", "/v1/completions", "", {{"Content-Type", "application/json"}, {"Content-Length", "99999999999"}});
  const HttpAnswer too_long = endless.Read();
  EXPECT_EQ(too_long.status, 413);
  EXPECT_THAT(ErrorOf(too_long).at("message"), HasSubstr("longer than 16777216 bytes"));
}

// Clients that write all of a body before they read get to read the answer, and may ask again on the same connection.
TEST_F(Front, SaysWhyItRefusesALongBodyToWhoeverWritesItWhole) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/long_key");
  std::ofstream(file) << "sesame\n";
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  Start(file);
  const std::string longer(17 << 20, ' ');
  HttpClient client(port_);
  for (const auto& [key, status] : {std::pair("Bearer sesame", 413), std::pair("Bearer salami", 401)}) {
    client.Ask("POST", "/v1/completions", longer, {{"Authorization", key}});
    EXPECT_EQ(client.Read().status, status);
  }
  const std::string long_body(8 << 20, ' ');
  client.Ask("POST", "/v1/embeddings", long_body, {{"Authorization", "Bearer sesame"}});
  EXPECT_EQ(client.Read().status, 404);
  client.Ask("GET", "/v1/models", "", {{"Authorization", "Bearer sesame"}});
  EXPECT_EQ(client.Read().status, 200);
  // One that asks before it writes needs not write.
  client.Ask("POST", "/v1/completions", "",
             {{"Content-Type", "application/json"}, {"Content-Length", "9"}, {"Expect", "100-continue"}});
  EXPECT_EQ(client.Read().status, 401);
}

TEST_F(Front, RefusesHeadersThatReadDifferentlyToDifferentReaders) {
  Start();
  for (const char* twice :
       {"Content-Length: 2\r\nContent-Length: 2\r\n", "Content-Length: 2\r\nContent-Length: 40\r\n",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 2\r\nHost: evil.example\r\n",
        "Content-Length: 2\r\nContent-Type: text/plain\r\n", "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: identity\r\n", "Transfer-Encoding: chunked, chunked\r\n", "Content-Length : 2\r\n",
        "Content-Length\t: 2\r\n", "Content-Length: 2\r\nTransfer-Encoding : chunked\r\n"}) {
    HttpClient client(port_);
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                             twice, "\r\n{}"));
    const HttpAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 400) << twice;
    EXPECT_THAT(answer.body, HasSubstr("a header comes twice")) << twice;
    EXPECT_EQ(answer.headers.at("connection"), "close");
  }
}

TEST_F(Front, ReadsABodyInChunksWhateverTheCaseOfTheirName) {
  Start();
  HttpClient client(port_);
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: Chunked\r\n\r\n10\r\n{\"prompt\": \"hi\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(Front, TakesNothingBehindALengthThatIsNone) {
  Start();
  for (const char* length : {"-1", "+16", "0x10", "16, 16", "", "16 16", "99999999999999999999999"}) {
    HttpClient client(port_);
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                             "Content-Length: ", length, "\r\n\r\n{\"prompt\": \"hi\"}"));
    const HttpAnswer answer = client.Read();
    EXPECT_EQ(answer.status / 100, 4) << length;
    EXPECT_EQ(answer.headers.at("connection"), "close") << length;
  }
  EXPECT_EQ(rollout_.asked, 0);
}

TEST_F(Front, CountsSequencesUntilTheirAnswersAreRead) {
  Start();
  HttpClient slow(port_);
  // More than sockets hold.
  const std::string text = "hi" + std::string(4 << 20, 'x');
  slow.Ask("POST", "/v1/completions", json{{"prompt", text}, {"n", 8}, {"echo", true}, {"max_tokens", 1}}.dump());
  EXPECT_EQ(slow.ReadHead().status, 200);
  const HttpAnswer refused = Post({{"prompt", "hi"}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(ErrorOf(refused).at("message"), HasSubstr("until their answers are fetched"));
  slow.Close();
  WaitUntil([&] { return Post({{"prompt", "hi"}}).status == 200; });
}

TEST_F(Front, ListsItsModel) {
  Start();
  const json list = json::parse(HttpAsk(port_, "GET", "/v1/models").body);
  EXPECT_EQ(list.at("object"), "list");
  EXPECT_EQ(list.at("data").at(0).at("id"), "org/tiny");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), 32);
  EXPECT_EQ(json::parse(HttpAsk(port_, "GET", "/v1/models/org/tiny").body).at("id"), "org/tiny");
  EXPECT_EQ(HttpAsk(port_, "GET", "/v1/models/gpt").status, 404);
}

TEST_F(Front, IsHealthyOnceTheModelIsLoaded) {
  rollout_.serving = false;
  Start();
  EXPECT_EQ(HttpAsk(port_, "GET", "/health").status, 503);
  EXPECT_EQ(Post({{"prompt", "hi"}}).status, 503);
  rollout_.serving = true;
  EXPECT_EQ(HttpAsk(port_, "GET", "/health").status, 200);
  EXPECT_THAT(HttpAsk(port_, "GET", "/metrics").body, HasSubstr("quartet_policy_version{model_name=\"org/tiny\"} 7\n"));
}

TEST_F(Front, IsNotHealthyWithoutWeights) {
  Start();
  rollout_.has_weights = false;
  EXPECT_EQ(HttpAsk(port_, "GET", "/health").status, 503);
  const HttpAnswer refused = Post({{"prompt", "hi"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("the rollout has no weights"));
  EXPECT_EQ(HttpAsk(port_, "GET", "/metrics").status, 200);
  rollout_.has_weights = true;
  EXPECT_EQ(HttpAsk(port_, "GET", "/health").status, 200);
}

TEST_F(Front, AsksForTheKey) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/key");
  std::ofstream(file) << "sesame\n";
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  Start(file);
  const auto models = [&](const std::string& authorization) {
    return HttpAsk(port_, "GET", "/v1/models", "", {{"Authorization", authorization}, {"Host", "any.example"}});
  };
  EXPECT_EQ(models("Bearer sesame").status, 200);
  for (const char* wrong :
       {"", "Bearer", "Bearer sesam", "Bearer sesamesesame", "Bearer xesame", "sesame", "Basic sesame"}) {
    const HttpAnswer answer = models(wrong);
    EXPECT_EQ(answer.status, 401) << wrong;
    EXPECT_EQ(ErrorOf(answer).at("code"), "invalid_api_key");
  }
  EXPECT_EQ(Post({{"prompt", "hi"}}).status, 401);
  EXPECT_EQ(HttpAsk(port_, "GET", "/metrics").status, 401);
  EXPECT_EQ(HttpAsk(port_, "GET", "/health").status, 200);
}

TEST_F(Front, AnswersItsOwnUserAloneWhereThereIsNoKey) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto status_as_nobody = [this] {
    const pid_t child = fork();
    if (child == 0) {
      if (setresuid(65534, 65534, 65534) != 0) _exit(1);
      _exit(HttpAsk(port_, "GET", "/v1/models").status / 100);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status) * 100;
  };
  Start();
  EXPECT_EQ(status_as_nobody(), 400);
  EXPECT_EQ(HttpAsk(port_, "GET", "/v1/models").status, 200);
  Start("", /*any_user=*/true);
  EXPECT_EQ(status_as_nobody(), 200);
}

TEST_F(Front, RefusesKeysThatOthersCanRead) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/open_key");
  std::ofstream(file) << "sesame\n";
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  HttpConfig config;
  config.set_listen("127.0.0.1:0");
  config.set_api_key_file(file);
  EXPECT_THAT(HttpFront::Start(config, &rollout_).status().message(), HasSubstr("chmod 600"));
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  std::ofstream(file, std::ios::trunc) << "\n";
  EXPECT_THAT(HttpFront::Start(config, &rollout_).status().message(), HasSubstr("is empty"));
}

TEST_F(Front, SaysWhereItIs) {
  Start();
  EXPECT_EQ(front_->url(), absl::StrCat("http://127.0.0.1:", port_, "/v1"));
}

TEST_F(Front, NamesAnAddressThatIsInUse) {
  Start();
  HttpConfig config;
  config.set_listen(front_->address());
  const absl::Status status = HttpFront::Start(config, &rollout_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(absl::StrCat("rollout.http.listen is \"", front_->address(), "\"")),
                                      HasSubstr("the address is in use"), HasSubstr("another port")));
}

}  // namespace
}  // namespace quartet
