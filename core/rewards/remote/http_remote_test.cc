#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/rewards/remote/remote.h"
#include "core/service/process/piped_process.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A server in Python that prints "listening on port N" once it does.
class HttpServer {
 public:
  explicit HttpServer(const std::vector<std::string>& argv) {
    auto started = PipedProcess::Start({.argv = argv});
    EXPECT_TRUE(started.ok()) << started.status();
    program_ = *std::move(started);
    const auto line = program_->ReadLine(1000, Deadline::In(absl::Seconds(60)), {});
    EXPECT_TRUE(line.ok()) << line.status();
    if (line.ok()) port_ = line->substr(line->rfind(' ') + 1);
  }
  std::string url(const std::string& path = "/") const { return absl::StrCat("http://127.0.0.1:", port_, path); }

 private:
  std::unique_ptr<PipedProcess> program_;
  std::string port_;
};

// Answers by the path that it is asked at.
constexpr char kOddServer[] = R"(
import http.server, json, sys, time
tries = 0
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        global tries
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path[1:]
        if name == "sleep": time.sleep(1000)
        if name in ("refuses", "small", "dies"):
            labels = json.loads(body)["labels"]
            tries += 1
            if name == "refuses": name = "422" if "bad" in labels else ""
            if name == "small": name = "413" if len(labels) > 2 or "large" in labels else ""
            if name == "dies": name = "400" if len(labels) > 1 else "503" if "down" in labels else ""
            name = name or json.dumps({"rewards": [float(x) for x in labels], "extra_logs": {"tries": [tries] * len(labels)}})
        if name == "echo":
            reply = json.dumps({"rewards": [1], "extra_logs": {"path": [len(self.path)], "key": [self.headers.get("Authorization") == "Bearer secret"]}})
        elif name == "request":
            wanted = {"query": ["Q? 1<end>"], "prompts": ["Q? "], "labels": ["one"], "rows": [{"level": 1}]}
            reply = json.dumps({"rewards": float(json.loads(body) == wanted)})
        elif name == "messages":
            wanted = [[{"role": "user", "content": "hi"}], []]
            reply = json.dumps({"rewards": [float(json.loads(body)["messages"] == wanted)] * 2})
        elif name == "tokens":
            asked = json.loads(body)
            values = [[i + (t == "b") / 2 for i, t in zip(*two)] for two in zip(asked["token_ids"], asked["token_texts"])]
            reply = json.dumps({"token_rewards": values})
        elif name.isdigit(): reply = "it is " + name
        else:
            import urllib.parse
            reply = urllib.parse.unquote(name)
        self.send_response(int(name) if name.isdigit() else 200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply.encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print("listening on port", server.server_port, flush=True)
server.serve_forever()
)";

const HttpServer& OddServer() {
  static const auto* server = new HttpServer({"python3", "-c", kOddServer});
  return *server;
}

Answer Of(const std::string& response, const std::string& label) {
  Answer answer;
  answer.query = "Q? " + response + "<end>";
  answer.prompt = "Q? ";
  answer.response = response;
  answer.label = label;
  answer.row = R"({"level": 1})";
  return answer;
}

std::vector<absl::StatusOr<Reward>> Ask(const RemoteOptions& options, const std::vector<Answer>& answers,
                                        std::stop_token stop = {}) {
  std::vector<const Answer*> pointers;
  for (const Answer& answer : answers) pointers.push_back(&answer);
  return NewHttpRemote(options)->Score(pointers, std::move(stop));
}

absl::StatusOr<Reward> AskAt(const std::string& path) {
  return Ask({.urls = {OddServer().url(path)}}, {Of("1", "one")}).at(0);
}

TEST(HttpRemote, AsksTheExampleServerAsOpenRlhfDoes) {
  const HttpServer server({"python3", "examples/rewards/http_server.py", "0"});
  const auto rewards = Ask({.urls = {server.url("/get_reward")}}, {Of("it is one", "one"), Of("two", "three")});
  ASSERT_EQ(rewards.size(), 2);
  ASSERT_TRUE(rewards[0].ok() && rewards[1].ok()) << rewards[0].status() << rewards[1].status();
  EXPECT_EQ(rewards[0]->value, 1);
  EXPECT_EQ(rewards[0]->score, 1);
  EXPECT_EQ(rewards[0]->extra_logs.at("characters"), 14);
  EXPECT_EQ(rewards[1]->value, 0);
}

TEST(HttpRemote, SendsQueriesPromptsAndLabels) {
  const auto reward = AskAt("/request");
  ASSERT_TRUE(reward.ok()) << reward.status();
  EXPECT_EQ(reward->value, 1);
}

TEST(HttpRemote, SendsTheConversationsOfAgents) {
  std::vector<Answer> answers = {Of("1", "one"), Of("2", "two")};
  answers[0].messages = R"([{"role": "user", "content": "hi"}])";
  for (const auto& reward : Ask({.urls = {OddServer().url("/messages")}}, answers)) EXPECT_EQ(reward.value().value, 1);
}

TEST(HttpRemote, AsksServersInTurnAndBringsTheKey) {
  const auto remote =
      NewHttpRemote({.urls = {OddServer().url("/echo"), OddServer().url("/{\"rewards\":[2]}")}, .api_key = "secret"});
  const Answer answer = Of("1", "one");
  const Answer* const one[] = {&answer};
  const auto first = remote->Score(one, {}).at(0), second = remote->Score(one, {}).at(0);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->extra_logs.at("key"), 1);
  EXPECT_EQ(second->value, 2);
}

TEST(HttpRemote, TellsErrorsThatPassFromThoseThatDoNot) {
  for (const int code : {408, 429, 500, 502, 503}) {
    EXPECT_TRUE(absl::IsUnavailable(AskAt(absl::StrCat("/", code)).status())) << code;
  }
  for (const int code : {201, 302, 400, 401, 404, 422, 501}) {
    const absl::Status status = AskAt(absl::StrCat("/", code)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("HTTP status ", code)), HasSubstr(absl::StrCat("it is ", code)),
                      HasSubstr("http://127.0.0.1:")));
  }
}

std::vector<absl::StatusOr<Reward>> AskForLabels(const std::string& path, const std::vector<std::string>& labels) {
  std::vector<Answer> answers;
  for (const std::string& label : labels) answers.push_back(Of("", label));
  auto rewards = Ask({.urls = {OddServer().url(path)}}, answers);
  EXPECT_EQ(rewards.size(), labels.size());
  return rewards;
}

TEST(HttpRemote, AsksForEachAnswerWhereTheServerDoesNotTakeOneOfThem) {
  const auto rewards = AskForLabels("/refuses", {"1", "2", "bad", "4"});
  for (const int i : {0, 1, 3}) {
    ASSERT_TRUE(rewards[i].ok()) << rewards[i].status();
    EXPECT_EQ(rewards[i]->value, i + 1);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(rewards[2].status())) << rewards[2].status();
  EXPECT_THAT(std::string(rewards[2].status().message()), HasSubstr("HTTP status 422"));
}

TEST(HttpRemote, HalvesRequestsThatAreTooLarge) {
  const auto rewards = AskForLabels("/small", {"1", "2", "3", "4", "5", "large", "7"});
  for (const int i : {0, 1, 2, 3, 4, 6}) {
    ASSERT_TRUE(rewards[i].ok()) << i << rewards[i].status();
    EXPECT_EQ(rewards[i]->value, i + 1);
  }
  EXPECT_EQ(rewards[1]->extra_logs.at("tries"), rewards[2]->extra_logs.at("tries")) << "by halves, not one by one";
  EXPECT_THAT(std::string(rewards[5].status().message()), HasSubstr("HTTP status 413"));
}

TEST(HttpRemote, AsksNoFurtherWhereTheServerFailsMeanwhile) {
  const auto rewards = AskForLabels("/dies", {"1", "down", "3"});
  EXPECT_TRUE(rewards[0].ok()) << rewards[0].status();
  for (const int i : {1, 2}) EXPECT_TRUE(absl::IsUnavailable(rewards[i].status())) << rewards[i].status();
}

TEST(HttpRemote, TakesNoReplyThatSaysNoNumber) {
  const auto message = [](const std::string& reply) { return std::string(AskAt("/" + reply).status().message()); };
  EXPECT_THAT(message("welcome"), HasSubstr("\"welcome\" is no JSON object with \"rewards\""));
  EXPECT_THAT(message("[1]"), HasSubstr("\"[1]\" is no JSON object with \"rewards\""));
  EXPECT_THAT(message("{\"reward\":1}"), HasSubstr("has no \"rewards\""));
  EXPECT_THAT(message("{\"rewards\":[NaN]}"), HasSubstr("\"rewards\" is \"NaN\", no finite number"));
  EXPECT_THAT(message("{\"rewards\":[1e400]}"), HasSubstr("\"rewards\" is \"1e400\", no finite number"));
  EXPECT_THAT(message("{\"rewards\":[1,2]}"), HasSubstr("\"rewards\" has 2 elements for 1 answers"));
  EXPECT_THAT(message("{\"rewards\":[]}"), HasSubstr("\"rewards\" has 0 elements"));
  EXPECT_THAT(message("{\"rewards\":[null]}"), HasSubstr("its reward is null"));
  EXPECT_THAT(message("{\"rewards\":[\"1\"]}"), HasSubstr("no finite number"));
  EXPECT_THAT(message("{\"rewards\":[1],\"scores\":[1,1]}"), HasSubstr("\"scores\" has 2 elements"));
  EXPECT_THAT(message("{\"rewards\":[1],\"extra_logs\":3}"), HasSubstr("\"extra_logs\""));
}

TEST(HttpRemote, BringsRewardsOfTokens) {
  const auto ask = [](const std::string& path, bool of_tokens = true) {
    std::vector<Answer> answers(2, Of("ab", ""));
    for (Answer& answer : answers) {
      answer.tokens = 2;
      answer.token_ids = {5, 6};
      answer.token_texts = {"a", "b"};
    }
    return Ask({.urls = {OddServer().url("/" + path)}, .token_rewards = of_tokens}, answers);
  };
  for (const absl::StatusOr<Reward>& reward : ask("tokens")) {
    ASSERT_TRUE(reward.ok()) << reward.status();
    EXPECT_THAT(reward->token_rewards, testing::ElementsAre(5, 6.5));
    EXPECT_EQ(reward->value, 11.5);
  }
  EXPECT_EQ(ask("{\"rewards\":null,\"token_rewards\":[[1,2],[1,3]]}")[1]->value, 4);
  const auto odd = ask("{\"rewards\":[1,NaN],\"scores\":[2,Infinity]}");
  EXPECT_EQ(odd[0]->score, 2) << "beside one that is no number";
  EXPECT_THAT(std::string(odd[1].status().message()), HasSubstr("\"rewards\" is \"NaN\""));
  const auto some = ask("{\"rewards\":[3,4],\"token_rewards\":[null,[1,2]]}");
  EXPECT_EQ(some[0]->value, 3);
  EXPECT_TRUE(some[0]->token_rewards.empty());
  EXPECT_THAT(std::string(some[1].status().message()), HasSubstr("\"reward\" is 4, and"));
  EXPECT_THAT(std::string(ask("{\"token_rewards\":[[1],[1,2]]}")[0].status().message()),
              HasSubstr("has 1 numbers, and the answer has 2 tokens"));
  EXPECT_THAT(std::string(ask("{\"token_rewards\":[null,[1,2]]}")[0].status().message()), HasSubstr("is null"));
  EXPECT_THAT(std::string(ask("{\"token_rewards\":[[1,2]]}")[0].status().message()), HasSubstr("has 1 elements for 2"));
  EXPECT_THAT(std::string(ask("{\"token_rewards\":7}")[0].status().message()), HasSubstr("is no list"));
  EXPECT_EQ(ask("{\"rewards\":[1,2],\"token_rewards\":[null,null]}", false)[1]->value, 2);
  EXPECT_THAT(std::string(ask("{\"rewards\":[1,2],\"token_rewards\":[[1],[2]]}", false)[0].status().message()),
              HasSubstr("token_rewards is false"));
}

TEST(HttpRemote, SaysThatNobodyListensOrAnswersInTime) {
  const absl::Status nobody = Ask({.urls = {"http://127.0.0.1:9/"}}, {Of("", "")}).at(0).status();
  EXPECT_TRUE(absl::IsUnavailable(nobody)) << nobody;
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("http://127.0.0.1:9/"));
  const absl::Status late =
      Ask({.urls = {OddServer().url("/sleep")}, .timeout = absl::Milliseconds(200)}, {Of("", "")}).at(0).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
}

TEST(HttpRemote, SaysOnceAMinuteThatRequestsAreSlow) {
  const auto remote = NewHttpRemote({.urls = {OddServer().url("/{\"rewards\":[2]}")}, .slow = absl::Nanoseconds(1)});
  const Answer answer = Of("1", "one");
  const Answer* const one[] = {&answer};
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(remote->Score(one, {}).at(0).ok());
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t at = log.find("for 1 answers has taken");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find("has taken", at + 20), std::string::npos) << log;
}

TEST(HttpRemote, LeavesWhenTheCallEnds) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(
      absl::IsCancelled(Ask({.urls = {OddServer().url("/sleep")}}, {Of("", "")}, stop.get_token()).at(0).status()));
}

}  // namespace
}  // namespace quartet
