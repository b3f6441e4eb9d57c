// The rollout's HTTP interface in a real process: what it answers, whom it lets in, where it listens.

#include <signal.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "core/http/testing/http_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr char kRollout[] = "rollout/rollout";

class Http : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string model = WriteTinyModel(harness_, "tiny");
    std::ofstream(model + "/tokenizer_config.json") << json{
        {"tokenizer_class", "PreTrainedTokenizerFast"},
        {"chat_template", "{% for m in messages %}{{ m['role'] + '=' + m['content'] + ' ' }}{% endfor %}assistant="}};
    const std::string text = absl::Substitute(R"(
run_dir: "$0"
rollout { pretrain: "$1" dtype: "fp32" kv_cache_bytes: 4194304 max_model_len: 256
          http { listen: "127.0.0.1:0" } }
services { rollout { ranks: 2 threads: 1 listen: "127.0.0.1:0" } }
)",
                                              harness_.Path("run"), model);
    config_ = harness_.Write("rollout.textproto", text);
  }

  void Start(const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> arguments = {"--config=" + config_};
    for (const std::string& field : overrides) arguments.push_back("--set=" + field);
    pid_ = harness_.Start(kRollout, arguments);
    ASSERT_TRUE(harness_.WaitForOutput(pid_, "serving on", kLimit)) << harness_.Output(pid_);
    const std::string output = harness_.Output(pid_);
    const size_t at = output.find("HTTP on 127.0.0.1:");
    ASSERT_NE(at, std::string::npos) << output;
    port_ = std::atoi(output.c_str() + at + strlen("HTTP on 127.0.0.1:"));
  }

  HttpAnswer Post(const std::string& path, const json& body) { return HttpAsk(port_, "POST", path, body.dump()); }
  json Completion(json body) {
    const HttpAnswer answer = Post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  double Metric(const std::string& name) {
    for (const absl::string_view line : absl::StrSplit(HttpAsk(port_, "GET", "/metrics").body, '\n')) {
      double value = 0;
      if (absl::StartsWith(line, absl::StrCat("quartet_", name, "{")) &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
        return value;
      }
    }
    ADD_FAILURE() << "there is no metric " << name;
    return 0;
  }

  ProcessHarness harness_;
  std::string config_;
  pid_t pid_ = 0;
  int port_ = 0;
};

// What a stream says, put together.
std::string TextOf(const std::string& events, const std::string& part, const std::string& field) {
  std::string text;
  for (const absl::string_view event : absl::StrSplit(events, "\n\n", absl::SkipEmpty())) {
    if (event == "data: [DONE]") return text;
    const json data = json::parse(event.substr(strlen("data: ")));
    for (const json& choice : data.at("choices")) {
      const json& of = part.empty() ? choice : choice.at(part);
      if (of.contains(field)) text += of.at(field).get<std::string>();
    }
  }
  ADD_FAILURE() << "the stream has no end: " << events;
  return text;
}

TEST_F(Http, AnswersWholeAndInPiecesAlike) {
  Start();
  const json greedy = {
      {"model", "tiny"}, {"prompt", "1+1="}, {"max_tokens", 24}, {"temperature", 0}, {"ignore_eos", true}};
  const json whole = Completion(greedy);
  const std::string text = whole["choices"][0]["text"];
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"], (json{{"prompt_tokens", 4}, {"completion_tokens", 24}, {"total_tokens", 28}}));
  json ids = greedy;
  ids["prompt"] = {4, 13, 4, 14};  // the same in tokens
  EXPECT_EQ(Completion(ids)["choices"][0]["text"], text);
  json stream = greedy;
  stream["stream"] = true;
  EXPECT_EQ(TextOf(Post("/v1/completions", stream).body, "", "text"), text);

  json chat = {{"messages", json::array({{{"role", "user"}, {"content", "1+1"}}})}, {"temperature", 0}};
  const json message = json::parse(Post("/v1/chat/completions", chat).body)["choices"][0]["message"];
  EXPECT_EQ(message["role"], "assistant");
  // The template by hand.
  const json by_hand = {{"prompt", "user=1+1 assistant="}, {"temperature", 0}, {"max_tokens", 256 - 19}};
  EXPECT_EQ(Completion(by_hand)["choices"][0]["text"], message["content"]);
  chat["stream"] = true;
  EXPECT_EQ(TextOf(Post("/v1/chat/completions", chat).body, "delta", "content"), message["content"]);
}

TEST_F(Http, ReadsChatsByTheTemplateOfTheRun) {
  Start({"services.rollout.ranks=1",
         "data.tokenizer_chat_template=" + harness_.Write("mine.jinja", "{{ messages[0].content }}=")});
  const json chat = {{"messages", json::array({{{"role", "user"}, {"content", "1+1"}}})}, {"temperature", 0}};
  const json answer = json::parse(Post("/v1/chat/completions", chat).body);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 4) << answer;
  const json by_hand = {{"prompt", "1+1="}, {"temperature", 0}, {"max_tokens", 256 - 4}};
  EXPECT_EQ(Completion(by_hand)["choices"][0]["text"], answer["choices"][0]["message"]["content"]);
}

TEST_F(Http, StopsAtAStringAndRepeatsASeed) {
  Start();
  const json base = {{"prompt", "ab"},     {"max_tokens", 40}, {"seed", 5},
                     {"ignore_eos", true}, {"n", 3},           {"logprobs", 2}};
  const json first = Completion(base);
  EXPECT_EQ(Completion(base)["choices"], first["choices"]);
  EXPECT_NE(first["choices"][0]["text"], first["choices"][1]["text"]);
  EXPECT_EQ(first["choices"][0]["logprobs"]["tokens"].size(), 40u);
  const std::string text = first["choices"][2]["text"];
  ASSERT_GT(text.size(), 12u);
  json stopping = base;
  stopping["stop"] = text.substr(9, 3);
  const json stopped = Completion(stopping)["choices"][2];
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(text.substr(9, 3))));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["stop_reason"], text.substr(9, 3));
}

TEST_F(Http, AClientThatLeavesFreesItsPlace) {
  // One sequence at a time: all of them would take long.
  Start({"rollout.max_num_seqs=1", "services.rollout.ranks=1"});
  const json body = {{"prompt", "a"}, {"n", 200}, {"max_tokens", 250}, {"ignore_eos", true}, {"stream", true}};
  HttpClient client(port_);
  client.Ask("POST", "/v1/completions", body.dump());
  EXPECT_EQ(client.ReadHead().status, 200);
  EXPECT_TRUE(client.ReadChunk().has_value());
  client.Close();
  // The next one is served at once.
  Completion({{"prompt", "b"}, {"max_tokens", 2}});
  EXPECT_EQ(Metric("num_requests_waiting"), 0);
  EXPECT_EQ(Metric("num_requests_running"), 0);
  EXPECT_EQ(Metric("kv_cache_usage_perc"), 0);
  EXPECT_LT(Metric("generation_tokens_total"), 200 * 250);
  EXPECT_GT(Metric("generation_tokens_total"), 0);
}

TEST_F(Http, RefusesWhatDoesNotFit) {
  Start({"rollout.max_num_seqs=1", "rollout.max_waiting=4", "services.rollout.ranks=1"});
  const HttpAnswer bad = Post("/v1/completions", {{"prompt", "a"}, {"top_p", 2}});
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(json::parse(bad.body)["error"]["param"], "top_p");
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 256}}).status, 400);
  HttpClient first(port_);
  first.Ask("POST", "/v1/completions",
            json{{"prompt", "a"}, {"n", 3}, {"max_tokens", 250}, {"ignore_eos", true}, {"stream", true}}.dump());
  EXPECT_EQ(first.ReadHead().status, 200);
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "a"}}).status, 429);
}

TEST_F(Http, ListensOnLoopbackAloneAndEndsWithTheProcess) {
  Start();
  EXPECT_EQ(HttpAsk(port_, "GET", "/health").status, 200);
  int http = 0;
  for (const ListeningSocket& socket : harness_.ListeningSockets()) {
    EXPECT_THAT(socket.address, AnyOf("127.0.0.1", "::1", "::ffff:127.0.0.1"))
        << ProcessHarness::CommandLine(socket.pid);
    http += socket.port == port_;
  }
  EXPECT_EQ(http, 1);
  HttpClient idle(port_);
  HttpClient busy(port_);
  busy.Ask("POST", "/v1/completions", json{{"prompt", "a"}, {"n", 100}, {"max_tokens", 250}, {"stream", true}}.dump());
  EXPECT_EQ(busy.ReadHead().status, 200);
  kill(pid_, SIGTERM);
  const auto outcome = harness_.Wait(pid_, absl::Seconds(10));
  EXPECT_TRUE(outcome.ended);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ::testing::Not(HasSubstr("did not end"))) << outcome.output;
}

TEST_F(Http, SpeaksTlsToThoseWithTheKey) {
  const auto shell = [&](const std::string& command) {
    return harness_.Run("/bin/sh", {"-c", absl::StrCat("cd ", harness_.folder(), " && ", command)}, kLimit);
  };
  const auto made = shell(
      "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
      " -keyout key.pem -out cert.pem && printf sesame > api_key && chmod 600 key.pem api_key");
  ASSERT_EQ(made.exit_code, 0) << made.output;
  Start({"services.rollout.ranks=1", "rollout.http.api_key_file=" + harness_.Path("api_key"),
         "rollout.http.cert_file=" + harness_.Path("cert.pem"), "rollout.http.key_file=" + harness_.Path("key.pem")});
  const auto ask = [&](const std::string& key) {
    return shell(
               absl::StrCat("(printf 'GET /v1/models HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer ", key,
                            "\\r\\nConnection: close\\r\\n\\r\\n'; sleep 1) | openssl s_client -quiet -CAfile cert.pem",
                            " -verify_return_error -connect 127.0.0.1:", port_))
        .output;
  };
  EXPECT_THAT(ask("sesame"), HasSubstr("\"id\":\"tiny\""));
  EXPECT_THAT(ask("guess"), HasSubstr("401 Unauthorized"));
}

TEST_F(Http, NeedsATokenizer) {
  std::filesystem::remove(harness_.Path("tiny/tokenizer.json"));
  const auto outcome = harness_.Run(kRollout, {"--config=" + config_, "--ranks=1"}, kLimit);
  EXPECT_TRUE(outcome.ended);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("has no tokenizer.json"));
}

}  // namespace
}  // namespace quartet
