// The front over real sockets, before a rollout that is played: a dispatcher, and a thread in place of its rank.

#include "rollout/http/openai_front.h"

#include <sys/stat.h>

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
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rollout/http/http_client.h"
#include "rollout/piece_tokenizer.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Answers " a b c d e f g h" to everything, until told otherwise.
class PlayedRollout final : public Generation {
 public:
  PlayedRollout() : dispatcher_({.ranks = 1, .max_num_seqs = 4, .max_waiting = 4}), rank_([this] { Work(); }) {}
  ~PlayedRollout() override {
    Close();
    rank_.join();
  }
  // As a service that stops.
  void Close() { dispatcher_.Close(); }

  std::atomic<bool> serving = true;
  std::atomic<bool> has_weights = true;
  std::atomic<bool> answers = true;  // else calls stay as they are
  std::atomic<int> cancelled = 0;    // calls
  absl::Status failure;              // of the first answer
  Dispatcher& dispatcher() { return dispatcher_; }

  absl::Status CheckServing() const override {
    return serving ? absl::OkStatus() : absl::UnavailableError("the rollout is still loading its model");
  }
  absl::Status CheckWeights() const override {
    return has_weights ? absl::OkStatus() : absl::FailedPreconditionError("the rollout has no weights");
  }
  absl::Status CheckHealth() const override {
    return has_weights ? absl::OkStatus() : absl::UnavailableError("the rollout's weights are released");
  }
  const Tokenizer* tokenizer() const override { return &tokenizer_; }
  int64_t vocab_size() const override { return tokenizer_.vocab_size(); }
  int64_t max_model_len() const override { return 32; }
  int64_t max_sequences() const override { return 8; }
  std::set<int32_t> eos_token_ids() const override { return {0}; }
  std::set<int32_t> stop_token_ids() const override { return {}; }
  absl::Status Check(const SamplingParams&, const std::vector<Prompt>& prompts) const override {
    if (prompts[0].ids_size() > 20) return absl::ResourceExhaustedError("prompt 0: ids need 3 blocks of KV cache");
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Dispatcher::Running>> Begin(const GenerateHeader& header,
                                                             const std::vector<Prompt>& prompts,
                                                             const std::function<bool()>& gone,
                                                             uint64_t* version) override {
    *version = 7;
    return dispatcher_.Begin(
        header, prompts, [] { return absl::OkStatus(); }, gone);
  }
  absl::StatusOr<GenerationState> State(absl::Time) override {
    GenerationState state;
    state.policy_version = 7;
    return state;
  }

 private:
  void Work() {
    std::vector<Dispatcher::Works> works;
    while (dispatcher_.Take(0, &works)) {
      for (const RankWork& work : works.front()) {
        RankEvents events;
        for (const CallPart& part : work.parts()) {
          for (const GenerateTask& task : part.tasks()) {
            for (int s = 0; answers && s < task.samples(); ++s) Answer(part, task, task.first_sample() + s, &events);
          }
        }
        cancelled += work.cancel_size();
        if (work.hold() > 0) events.add_events()->set_held(work.hold());
        dispatcher_.Answer(0, std::move(events));
      }
    }
  }
  void Answer(const CallPart& part, const GenerateTask& task, int sample, RankEvents* events) {
    GeneratedSequence sequence;
    sequence.set_prompt_index(task.prompt().index());
    sequence.set_sample(sample);
    *sequence.mutable_tokens()->mutable_ids() = task.prompt().ids();
    for (int32_t id = 1; id <= std::min(8, part.sampling().max_new_tokens()); ++id) {
      sequence.mutable_tokens()->add_ids(id);
      sequence.add_log_probs(-0.5f);
      if (!part.stream_tokens()) continue;
      RankEvent& event = *events->add_events();
      event.set_call(part.call());
      event.mutable_tokens()->set_prompt_index(task.prompt().index());
      event.mutable_tokens()->set_sample(sample);
      event.mutable_tokens()->add_ids(id);
      event.mutable_tokens()->add_log_probs(-0.5f);
    }
    sequence.set_finish_reason(GeneratedSequence::LENGTH);
    RankEvent& event = *events->add_events();
    event.set_call(part.call());
    if (!failure.ok()) {
      event.mutable_error()->set_code(failure.raw_code());
      event.mutable_error()->set_message(std::string(failure.message()));
    } else {
      *event.mutable_sequence() = std::move(sequence);
    }
  }

  const PieceTokenizer tokenizer_{{"<end>", " a", " b", " c", " d", " e", " f", " g", " h", "hi", "user", ":", ";"}};
  Dispatcher dispatcher_;
  std::thread rank_;
};

class Front : public ::testing::Test {
 protected:
  void Start(const std::string& api_key_file = "") {
    HttpConfig config;
    config.set_listen("127.0.0.1:0");
    config.set_served_model_name("org/tiny");
    config.set_api_key_file(api_key_file);
    auto started = HttpFront::Start(config, &rollout_);
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
    if (stream) client.ReadHead();
    client.Close();
    WaitUntil([&] { return rollout_.cancelled == (stream ? 2 : 1); });
  }
}

TEST_F(Front, GivesUpARequestThatWaitsForThePausesEnd) {
  Start();
  const auto never = [] { return false; };
  ASSERT_TRUE(rollout_.dispatcher().Pause(PauseRequest::KEEP, never).ok());
  HttpClient left(port_);
  left.Ask("POST", "/v1/completions", json{{"prompt", "hi"}}.dump());
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

TEST_F(Front, NamesAnAddressThatIsInUse) {
  Start();
  HttpConfig config;
  config.set_listen(front_->address());
  EXPECT_THAT(HttpFront::Start(config, &rollout_).status().message(), HasSubstr("the address is in use"));
}

}  // namespace
}  // namespace quartet
