// What an agent is refused, what of its episode is not trained on, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <future>
#include <latch>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/counted_memory.h"
#include "core/http/testing/http_client.h"
#include "orchestrator/agents/episode_server.h"
#include "orchestrator/agents/testing/served_agents.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Ends once `token` is requested to stop.
absl::Status WaitFor(const std::stop_token& token) {
  std::promise<void> stopped;
  const std::stop_callback on_stop(token, [&] { stopped.set_value(); });
  stopped.get_future().wait();
  return absl::CancelledError("given up");
}

class EpisodeLimitsTest : public ServedAgents {
 protected:
  // An episode is open, and a call of it under way, until it is given up.
  void StartWithACall() {
    Start([this](const std::string&, const std::stop_token& give_up) -> absl::StatusOr<std::string> {
      asked_.set_value();
      return WaitFor(give_up);
    });
    episode_ = server_->Open(1);
    client_.emplace(PortOf(episode_));
    Begin(*client_, episode_);
    asked_.get_future().wait();
  }

  std::promise<void> asked_;
  OpenEpisode episode_;
  std::optional<HttpClient> client_;
};

TEST_F(EpisodeLimitsTest, TrainsOnNothingThatItsClientDidNotWaitFor) {
  std::promise<void> asked;
  std::atomic<bool> first = true;
  Start([&](const std::string&, const std::stop_token& give_up) -> absl::StatusOr<std::string> {
    if (!first.exchange(false)) return "the answer";
    asked.set_value();
    return WaitFor(give_up);
  });
  const OpenEpisode episode = server_->Open(1);
  HttpClient client(PortOf(episode));
  Begin(client, episode);
  asked.get_future().wait();
  client.Close();
  // Its retry is another draw.
  EXPECT_EQ(Answer(episode, Question("hi"))["content"], "the answer");
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_TRUE(record.policy.ok()) << record.policy;
  EXPECT_EQ(record.calls, 1);
  EXPECT_EQ(record.refused, 0);
  ASSERT_THAT(record.sequences, SizeIs(1));
  EXPECT_NE(policy_->headers()[0].sampling().seed(), policy_->headers()[1].sampling().seed());
}

// The answer is drawn, but nobody is there.
TEST_F(EpisodeLimitsTest, TrainsOnNothingThatWasNotDelivered) {
  for (const bool stream : {false, true}) {
    std::promise<void> asked, left;
    Start([&](const std::string&, const std::stop_token&) {
      asked.set_value();
      left.get_future().wait();
      return "the answer";
    });
    const OpenEpisode episode = server_->Open(1);
    HttpClient client(PortOf(episode));
    Begin(client, episode, {{"stream", stream}});
    asked.get_future().wait();
    client.Close();
    left.set_value();
    const EpisodeRecord record = server_->Close(episode.key);
    EXPECT_EQ(record.calls, 0);
    EXPECT_EQ(record.response, "");
    EXPECT_THAT(record.sequences, IsEmpty());
    server_.reset();
  }
}

TEST_F(EpisodeLimitsTest, TrainsOnNothingWhoseClientLeftAmid) {
  // More than sockets hold.
  Start({}, "grouped_results", [](EpisodeServerOptions* options) { options->episode.model.assign(32 << 20, 'm'); });
  const OpenEpisode episode = server_->Open(1);
  HttpClient client(PortOf(episode));
  Begin(client, episode);
  EXPECT_EQ(client.ReadHead().status, 200);
  client.Close();
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(record.calls, 0);
  EXPECT_THAT(record.sequences, IsEmpty());
}

TEST_F(EpisodeLimitsTest, CountsNoAnswerThatNobodyGot) {
  for (const bool while_it_is_drawn : {true, false}) {
    std::promise<void> asked, left;
    std::atomic<bool> first = true;
    Start(
        [&](const std::string&, const std::stop_token& give_up) -> absl::StatusOr<std::string> {
          if (!first.exchange(false)) return "the answer";
          asked.set_value();
          if (while_it_is_drawn) return WaitFor(give_up);
          left.get_future().wait();
          return "an answer";
        },
        "grouped_results", [](EpisodeServerOptions* options) { options->episode.max_turns = 1; });
    const OpenEpisode episode = server_->Open(1);
    HttpClient client(PortOf(episode));
    Begin(client, episode);
    asked.get_future().wait();
    client.Close();
    left.set_value();
    // Until it is known.
    while (Chat(episode, Question("hi")).status != 200) std::this_thread::yield();
    EXPECT_EQ(Chat(episode, Question("hi")).status, 400);
    EXPECT_EQ(server_->Close(episode.key).calls, 1);
    server_.reset();
  }
}

TEST_F(EpisodeLimitsTest, HoldsNothingOfRequestsThatItRefuses) {
  Start({}, "grouped_results", [](EpisodeServerOptions* options) { options->episode.max_len = 100; });
  const OpenEpisode episode = server_->Open(1);
  int64_t before = 0;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Chat(episode, Question(std::string(100'000 + i, 'x'))).status, 400);
    if (i == 1) before = AllocatedBytes();
  }
  EXPECT_LT(AllocatedBytes() - before, 5 * 100'000);
}

// algorithm.overlong_filtering leaves out what the run has cut.
TEST_F(EpisodeLimitsTest, TellsTheRunsLimitsFromThoseOfARequest) {
  Start({}, "grouped_results", [](EpisodeServerOptions* options) { options->episode.max_len = 100; });
  generation_.mutable_sampling()->set_max_new_tokens(10);
  server_->SetGeneration(generation_);
  const auto last_of = [this](const std::string& question, const json& more) {
    const OpenEpisode episode = server_->Open(1);
    EXPECT_EQ(Chat(episode, Question(question), more).status, 200);
    return server_->Close(episode.key);
  };
  const EpisodeRecord by_request = last_of("hi", {{"max_tokens", 9}});
  EXPECT_TRUE(by_request.truncated);
  EXPECT_FALSE(by_request.overlong);
  for (const int tokens : {10, 11}) EXPECT_TRUE(last_of("hi", {{"max_tokens", tokens}}).overlong);
  std::string question = "?";
  while (tokenizer_->Encode(question, false)->size() < 60) question += "?";
  const int64_t room = 100 - std::ssize(last_of(question, {{"max_tokens", 1}}).sequences.at(0).ids) + 1;
  while (tokenizer_->Encode(question, false)->size() < static_cast<size_t>(60 + room - 5)) question += "?";
  EXPECT_TRUE(last_of(question, {{"max_tokens", 9}}).overlong) << "the context had room for 5";
}

TEST_F(EpisodeLimitsTest, DrawsAsTheRunSays) {
  Start();
  const OpenEpisode episode = server_->Open(1);
  for (int i = 0; i < 2; ++i) {
    Answer(episode, Question("hi"),
           {{"temperature", 1},
            {"top_p", 0.75},
            {"top_k", 5},
            {"seed", 3},
            {"presence_penalty", 1},
            {"stop", "\n"},
            {"max_tokens", 100}});
  }
  const SamplingParams sampling = policy_->headers()[0].sampling();
  EXPECT_EQ(sampling.temperature(), 0.5F);
  EXPECT_EQ(sampling.top_p(), 0.75F);
  EXPECT_EQ(sampling.top_k(), 0);
  EXPECT_EQ(sampling.presence_penalty(), 0);
  EXPECT_NE(sampling.seed(), 3);
  EXPECT_FALSE(sampling.raw_logprobs());
  EXPECT_THAT(sampling.stop(), ElementsAre("\n"));
  EXPECT_EQ(sampling.max_new_tokens(), 100);
  EXPECT_EQ(sampling.n_samples(), 1);
  EXPECT_EQ(policy_->headers()[0].policy_version(), 7);
  EXPECT_EQ(policy_->headers()[0].affinity(), policy_->headers()[1].affinity());
  EXPECT_NE(policy_->headers()[0].affinity(), 0);
  // Once of each; top_p is the run's own.
  EXPECT_THAT(notices_, ::testing::UnorderedElementsAre(HasSubstr("temperature"), HasSubstr("top_k"), HasSubstr("seed"),
                                                        HasSubstr("presence_penalty")));
}

TEST_F(EpisodeLimitsTest, RefusesWhatTheRunDoesNotDraw) {
  Start();
  const OpenEpisode episode = server_->Open(1);
  const std::pair<const char*, json> refused[] = {{"n", 2},
                                                  {"logit_bias", {{"5", 1}}},
                                                  {"min_tokens", 3},
                                                  {"ignore_eos", true},
                                                  {"max_tokens", 0},
                                                  {"prompt_logprobs", 1},
                                                  {"add_special_tokens", true},
                                                  {"nonsense", 1}};
  for (const auto& [name, value] : refused) {
    const HttpAnswer answer = Chat(episode, Question("hi"), {{name, value}});
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(ErrorOf(answer)["param"], name);
  }
  const auto expect = [&](int status, const HttpAnswer& answer) { EXPECT_EQ(answer.status, status) << answer.body; };
  const std::string path = PathOf(episode);
  expect(400, Post(episode, {{"messages", "hi"}}));
  expect(404, HttpAsk(PortOf(episode), "POST", path + "/completions", "{}", KeyOf(episode)));
  expect(405, HttpAsk(PortOf(episode), "GET", path + "/chat/completions", "", KeyOf(episode)));
  std::map<std::string, std::string> plain = KeyOf(episode);
  plain["Content-Type"] = "text/plain";
  expect(415, HttpAsk(PortOf(episode), "POST", path + "/chat/completions", "{}", plain));

  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(record.refused, 12);
  EXPECT_THAT(record.refusal, HasSubstr("n is 2; allowed: 1: answers are trained on"));
  EXPECT_EQ(record.calls, 0);
  EXPECT_TRUE(record.policy.ok());
}

TEST_F(EpisodeLimitsTest, EndsAtItsLimits) {
  Start({}, "grouped_results", [](EpisodeServerOptions* options) {
    options->episode.max_turns = 2;
    options->episode.max_len = 100;
  });
  generation_.mutable_sampling()->set_max_new_tokens(10);
  generation_.mutable_sampling()->set_min_tokens(9);
  server_->SetGeneration(generation_);
  const OpenEpisode episode = server_->Open(1);
  const HttpAnswer long_prompt = Chat(episode, Question(std::string(2000, 'x')));
  EXPECT_EQ(long_prompt.status, 400);
  EXPECT_EQ(ErrorOf(long_prompt)["code"], "context_length_exceeded");
  EXPECT_THAT(ErrorOf(long_prompt)["message"].get<std::string>(),
              HasSubstr("this model's maximum context length is 100 tokens"));
  const json cut = json::parse(Chat(episode, Question("hi"), {{"max_tokens", 50}}).body)["choices"][0];
  EXPECT_EQ(cut["finish_reason"], "length");
  EXPECT_EQ(policy_->headers()[0].sampling().max_new_tokens(), 10);
  // What the context leaves.
  const int64_t prompt = json::parse(Chat(episode, Question("?")).body)["usage"]["prompt_tokens"];
  const HttpAnswer third = Chat(episode, Question("hi"));
  EXPECT_EQ(third.status, 400);
  EXPECT_THAT(ErrorOf(third)["message"].get<std::string>(), HasSubstr("max_turns = 2"));
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(record.calls, 2);
  EXPECT_EQ(record.refused, 2);
  EXPECT_TRUE(record.truncated);
  const OpenEpisode other = server_->Open(1);
  std::string question = "?";
  while (tokenizer_->Encode(question, false)->size() < static_cast<size_t>(96 - prompt + 1)) question += "?";
  Chat(other, Question(question));
  EXPECT_EQ(policy_->headers().back().sampling().max_new_tokens(), 4);
  EXPECT_EQ(policy_->headers().back().sampling().min_tokens(), 4);
}

TEST_F(EpisodeLimitsTest, AnswersWhoHasItsKeyWhileItIsOpen) {
  Start();
  OpenEpisode episode = server_->Open(1);
  const OpenEpisode other = server_->Open(1);
  EXPECT_THAT(std::set({episode.key, episode.api_key, other.key, other.api_key}), SizeIs(4));
  OpenEpisode wrong = episode;
  wrong.api_key = other.api_key;
  const HttpAnswer unknown_key = Chat(wrong, Question("hi"));
  EXPECT_EQ(unknown_key.status, 401);
  EXPECT_EQ(ErrorOf(unknown_key)["code"], "invalid_api_key");
  wrong.base_url = absl::StrCat("http://127.0.0.1:", PortOf(episode), "/episodes/", std::string(32, '0'), "/v1");
  EXPECT_EQ(Chat(wrong, Question("hi")).status, 404);
  EXPECT_EQ(HttpAsk(PortOf(episode), "GET", "/v1/models", "", KeyOf(episode)).status, 404);
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(record.calls, 0);
  EXPECT_EQ(record.refused, 1) << "with a wrong key";
  EXPECT_THAT(record.sequences, IsEmpty());
  const HttpAnswer closed = Chat(episode, Question("hi"));
  EXPECT_EQ(closed.status, 404);
  EXPECT_THAT(ErrorOf(closed)["message"].get<std::string>(), HasSubstr("it is closed"));
  Answer(other, Question("hi"));
}

TEST_F(EpisodeLimitsTest, GivesUpWhatIsUnderWayWhenItIsClosed) {
  StartWithACall();
  const EpisodeRecord record = server_->Close(episode_.key);
  EXPECT_EQ(client_->Read().status, 404);
  EXPECT_TRUE(record.policy.ok()) << record.policy;
  EXPECT_EQ(record.calls + record.refused, 0);
}

TEST_F(EpisodeLimitsTest, EndsWithCallsUnderWay) {
  StartWithACall();
  server_.reset();
}

TEST_F(EpisodeLimitsTest, FailsWithThePolicy) {
  Start([](const std::string&, const std::stop_token&) -> absl::StatusOr<std::string> {
    return absl::InternalError("rollout at host:1, Generate: logits are not finite");
  });
  const OpenEpisode episode = server_->Open(1);
  for (int i = 0; i < 2; ++i) {
    const HttpAnswer answer = Chat(episode, Question("hi"));
    EXPECT_EQ(answer.status, 503);
    EXPECT_THAT(ErrorOf(answer)["message"].get<std::string>(), HasSubstr("logits are not finite"));
  }
  EXPECT_THAT(policy_->headers(), SizeIs(1));
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(record.policy.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(record.refused, 0);
  EXPECT_EQ(record.calls, 0);
}

TEST_F(EpisodeLimitsTest, AsksAgainWhereThePolicyHasNoRoom) {
  std::atomic<int> asked = 0;
  Start([&](const std::string&, const std::stop_token&) -> absl::StatusOr<std::string> {
    if (++asked <= 3) return absl::ResourceExhaustedError("rollout.max_calls = 8 is reached");
    return "the answer";
  });
  const OpenEpisode episode = server_->Open(1);
  EXPECT_EQ(Answer(episode, Question("hi"))["content"], "the answer");
  EXPECT_EQ(policy_->headers()[0].sampling().seed(), policy_->headers()[3].sampling().seed());
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_TRUE(record.policy.ok()) << record.policy;
  EXPECT_EQ(record.calls, 1);
  EXPECT_EQ(record.refused, 0);
  EXPECT_EQ(record.no_room, "");
}

TEST_F(EpisodeLimitsTest, WaitsForRoomUntilItIsClosed) {
  std::promise<void> asked;
  std::atomic<bool> first = true;
  Start([&](const std::string&, const std::stop_token&) -> absl::StatusOr<std::string> {
    if (first.exchange(false)) asked.set_value();
    return absl::ResourceExhaustedError("rollout.max_calls = 8 is reached");
  });
  const OpenEpisode episode = server_->Open(1);
  HttpClient client(PortOf(episode));
  Begin(client, episode);
  asked.get_future().wait();
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(client.Read().status, 404);
  EXPECT_TRUE(record.policy.ok()) << record.policy;
  EXPECT_EQ(record.no_room, "rollout.max_calls = 8 is reached");
}

TEST_F(EpisodeLimitsTest, RefusesNoBodyForThoseOfOthers) {
  Start();
  const OpenEpisode episode = server_->Open(1);
  const std::string body(16 << 20, 'x');
  std::deque<HttpClient> clients;
  for (int i = 0; i < 20; ++i) {
    HttpClient& client = clients.emplace_back(PortOf(episode));
    client.Send(absl::StrCat("POST ", PathOf(episode), "/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
                             "Content-Type: application/json\r\nAuthorization: Bearer ", episode.api_key,
                             "\r\nContent-Length: ", body.size(), "\r\n\r\n"));
    client.Send(body.substr(1));
  }
  for (HttpClient& client : clients) client.Send("x");
  for (HttpClient& client : clients) EXPECT_EQ(client.Read().status, 400) << "no JSON";
  EXPECT_EQ(server_->Close(episode.key).refused, 20);
}

TEST_F(EpisodeLimitsTest, CountsABodyThatIsTooLong) {
  Start();
  const OpenEpisode episode = server_->Open(1);
  HttpClient client(PortOf(episode));
  client.Send(absl::StrCat("POST ", PathOf(episode), "/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
                           "Content-Type: application/json\r\nAuthorization: Bearer ", episode.api_key,
                           "\r\nExpect: 100-continue\r\nContent-Length: ", 17 << 20, "\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 413);
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(record.refused, 1);
  EXPECT_THAT(record.refusal, HasSubstr("the body is longer than 16777216 bytes"));
}

TEST_F(EpisodeLimitsTest, LetsRequestsWaitAndRefusesThoseBeyond) {
  std::promise<void> end;
  std::atomic<int> running = 0, most = 0;
  Start(
      [&, waits = end.get_future().share()](const std::string&, const std::stop_token&) {
        most = std::max<int>(most, ++running);
        waits.wait();
        --running;
        return "the answer";
      },
      "grouped_results",
      [](EpisodeServerOptions* options) {
        options->max_calls = 1;
        options->max_waiting = 2;
      });
  const OpenEpisode episode = server_->Open(1);
  std::atomic<int> answered = 0;
  std::latch refused(3);
  std::vector<std::thread> agents;
  for (int i = 0; i < 6; ++i) {
    agents.emplace_back([&] {
      const HttpAnswer answer = Chat(episode, Question("hi"));
      if (answer.status == 200) {
        ++answered;
        return;
      }
      EXPECT_EQ(answer.status, 429) << answer.body;
      EXPECT_EQ(ErrorOf(answer)["code"], "rate_limit_exceeded");
      EXPECT_EQ(answer.headers.at("retry-after"), "1");
      refused.count_down();
    });
  }
  refused.wait();
  end.set_value();
  for (std::thread& agent : agents) agent.join();
  EXPECT_EQ(answered, 3);
  EXPECT_EQ(most, 1);
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(record.calls, 3);
  EXPECT_EQ(record.refused, 3);
}

}  // namespace
}  // namespace quartet
