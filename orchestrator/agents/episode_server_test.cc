// Agents over real sockets, before a policy that draws what it is told to.
#include "orchestrator/agents/episode_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <latch>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/testing/counted_memory.h"
#include "orchestrator/agents/testing/served_agents.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using EpisodeServerTest = ServedAgents;

TEST_F(EpisodeServerTest, AnswersAnAgentAndKeepsWhatWasDrawn) {
  std::atomic<int> said = 0;
  Start([&](const std::string& prompt, const std::stop_token&) {
    EXPECT_THAT(prompt, HasSubstr("<|start|>system\nYou help.<|end|>"));
    return absl::StrCat("the answer ", ++said);
  });
  const OpenEpisode episode = server_->Open(1);
  json messages = Question("2 and 2?");
  const HttpAnswer first = Chat(episode, messages);
  ASSERT_EQ(first.status, 200) << first.body;
  const json body = json::parse(first.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "policy");
  EXPECT_EQ(body["system_fingerprint"], "policy_version_7");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 13);
  messages.push_back(body["choices"][0]["message"]);
  messages.push_back(Message("user", "and 3?"));
  messages.push_back(Answer(episode, messages));

  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_TRUE(record.policy.ok());
  EXPECT_EQ(record.calls, 2);
  EXPECT_EQ(record.refused, 0);
  EXPECT_EQ(record.response, "the answer 2");
  EXPECT_FALSE(record.truncated);
  ASSERT_THAT(record.sequences, SizeIs(1));
  EXPECT_EQ(Text(record.sequences[0], true), "the answer 1<|end|>the answer 2<|end|>");
  EXPECT_THAT(record.sequences[0].sampled_log_probs, AllOf(SizeIs(26), ::testing::Each(-0.5F)));
  EXPECT_EQ(json(record.conversation), json::array({Message("user", "2 and 2?"), Message("assistant", "the answer 1"),
                                                    Message("user", "and 3?"), Message("assistant", "the answer 2")}));
}

TEST_F(EpisodeServerTest, NamesItsModel) {
  Start();
  const OpenEpisode episode = server_->Open(1);
  const auto get = [&](const std::string& path) {
    return HttpAsk(PortOf(episode), "GET", PathOf(episode) + path, "", KeyOf(episode));
  };
  EXPECT_EQ(json::parse(get("/models").body)["data"][0]["id"], "policy");
  EXPECT_EQ(json::parse(get("/models/policy").body)["max_model_len"], 4096);
  EXPECT_EQ(get("/models/gpt-4").status, 404);
  EXPECT_EQ(Answer(episode, Question("hi"), {{"model", "policy"}})["role"], "assistant");
  EXPECT_EQ(ErrorOf(Chat(episode, Question("hi"), {{"model", "gpt-4"}}))["code"], "model_not_found");
}

TEST_F(EpisodeServerTest, StreamsTheSameAnswer) {
  Start([](const std::string&, const std::stop_token&) { return "the answer"; });
  const OpenEpisode episode = server_->Open(1);
  const HttpAnswer answer =
      Chat(episode, Question("hi"), {{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  std::string content, finish;
  std::vector<std::string> events = absl::StrSplit(answer.body, "\n\n", absl::SkipEmpty());
  ASSERT_THAT(events, SizeIs(5)) << answer.body;
  EXPECT_EQ(events.back(), "data: [DONE]");
  EXPECT_EQ(json::parse(events[3].substr(6))["usage"]["completion_tokens"], 11);
  for (int i = 0; i < 3; ++i) {
    const json choice = json::parse(events[i].substr(6))["choices"][0];
    content += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(content, "the answer");
  EXPECT_EQ(finish, "stop");
  json messages = Question("hi");
  messages.push_back(Message("assistant", content));
  messages.push_back(Message("user", "more"));
  Answer(episode, messages, {{"stream", false}});
  EXPECT_THAT(server_->Close(episode.key).sequences, SizeIs(1));
}

TEST_F(EpisodeServerTest, CallsTools) {
  for (const char* name : {"grouped_results", "call_ids"}) {
    const std::string calls = R"({"name": "add", "arguments": {"b": 1, "a": [2]}})";
    const std::string drawn =
        std::string(name) == "call_ids" ? "[TOOL_CALLS][" + calls + "]" : "<tool_call>\n" + calls + "\n</tool_call>";
    Start([&](const std::string& prompt,
              const std::stop_token&) { return prompt.find("it is 3") == std::string::npos ? drawn : "three"; },
          name);
    for (const bool stream : {false, true}) {
      const OpenEpisode episode = server_->Open(1);
      const json tools = json::array({{{"type", "function"}, {"function", {{"name", "add"}}}}});
      json messages = Question("1 and 2?"), message;
      const HttpAnswer answer = Chat(episode, messages, {{"tools", tools}, {"stream", stream}});
      if (stream) {
        const size_t at = answer.body.find("\"tool_calls\":");
        ASSERT_NE(at, std::string::npos) << answer.body;
        const size_t begin = answer.body.rfind("data: ", at) + 6;
        const json delta =
            json::parse(answer.body.substr(begin, answer.body.find("\n\n", at) - begin))["choices"][0]["delta"];
        message = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", delta["tool_calls"]}};
      } else {
        message = json::parse(answer.body)["choices"][0]["message"];
      }
      ASSERT_THAT(message["tool_calls"], SizeIs(1)) << answer.body;
      EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"b":1,"a":[2]})");
      messages.push_back(message);
      json result = Message("tool", "it is 3");
      result["tool_call_id"] = message["tool_calls"][0]["id"];
      messages.push_back(result);
      EXPECT_EQ(Answer(episode, messages, {{"tools", tools}})["content"], "three");
      const EpisodeRecord record = server_->Close(episode.key);
      std::string actions;
      for (const EpisodeSequence& sequence : record.sequences) actions += Text(sequence, true);
      // Where the template has ids, the call is written otherwise than it was drawn: a branch.
      if (std::string(name) == "grouped_results") {
        EXPECT_THAT(record.sequences, SizeIs(1));
        EXPECT_EQ(actions, drawn + "<|end|>three<|end|>");
        EXPECT_EQ(record.conversation[1]["tool_calls"][0]["function"]["arguments"], R"({"b":1,"a":[2]})");
      }
      EXPECT_THAT(actions, AllOf(HasSubstr(drawn), HasSubstr("three<|end|>")));
    }
  }
}

TEST_F(EpisodeServerTest, TellsThoughtsApart) {
  Start([](const std::string&, const std::stop_token&) { return "<think>\nhm\n</think>\n\nfour"; }, "drops_thoughts");
  const OpenEpisode episode = server_->Open(1);
  const json message = Answer(episode, Question("2 and 2?"));
  EXPECT_EQ(message["content"], "four");
  EXPECT_EQ(message["reasoning_content"], "hm");
}

TEST_F(EpisodeServerTest, AnswersSubAgentsAtTheSameTime) {
  std::latch all(4);
  Start([&](const std::string& prompt, const std::stop_token&) {
    all.arrive_and_wait();
    return prompt.substr(prompt.find("part "), 6);
  });
  const OpenEpisode episode = server_->Open(1);
  std::vector<std::thread> agents;
  for (int i = 0; i < 4; ++i) {
    agents.emplace_back([&, i] {
      const std::string part = absl::StrCat("part ", i);
      EXPECT_EQ(Answer(episode, Question(part))["content"], part);
    });
  }
  for (std::thread& agent : agents) agent.join();
  const EpisodeRecord record = server_->Close(episode.key);
  EXPECT_EQ(record.calls, 4);
  std::set<std::string> actions;
  for (const EpisodeSequence& sequence : record.sequences) actions.insert(Text(sequence, true));
  EXPECT_THAT(actions, ElementsAre("part 0<|end|>", "part 1<|end|>", "part 2<|end|>", "part 3<|end|>"));
}

TEST_F(EpisodeServerTest, GoesBackToAnEarlierQuestion) {
  Start();
  const OpenEpisode episode = server_->Open(1);
  json messages = Question("one");
  messages.push_back(Answer(episode, messages));
  json other = messages;
  messages.push_back(Message("user", "two"));
  other.push_back(Message("user", "three"));
  const std::string two = Answer(episode, messages)["content"], three = Answer(episode, other)["content"];
  EXPECT_NE(two, three);
  const EpisodeRecord record = server_->Close(episode.key);
  ASSERT_THAT(record.sequences, SizeIs(2));
  EXPECT_EQ(record.response, three);
  EXPECT_EQ(record.conversation[2]["content"], "three");
  const std::string first = other[1]["content"];
  EXPECT_EQ(Text(record.sequences[0], true), absl::StrCat(first, "<|end|>", two, "<|end|>"));
  EXPECT_EQ(Text(record.sequences[1], true), absl::StrCat(three, "<|end|>"));
}

TEST_F(EpisodeServerTest, KeepsOnceWhatAllRequestsOfAConversationHave) {
  Start({}, "grouped_results", [](EpisodeServerOptions* options) { options->episode.max_len = 1 << 20; });
  const OpenEpisode episode = server_->Open(1);
  json messages = Question(std::string(200'000, 'x'));
  int64_t before = 0;
  for (int turn = 0; turn < 20; ++turn) {
    messages.push_back(Answer(episode, messages));
    messages.push_back(Message("user", "more"));
    if (turn == 1) before = AllocatedBytes();
  }
  EXPECT_LT(AllocatedBytes() - before, 10 * 200'000);
  EXPECT_THAT(server_->Close(episode.key).conversation, SizeIs(40));
}

// An agent that goes on asking, and asks the same twice at the same time.
EpisodeRecord Play(EpisodeServer* server, uint64_t seed,
                   const std::function<json(const OpenEpisode&, const json&)>& ask) {
  const OpenEpisode episode = server->Open(seed);
  json messages = Question("hi");
  for (int turn = 0; turn < 4; ++turn) {
    messages.push_back(ask(episode, messages));
    messages.push_back(Message("user", absl::StrCat("turn ", turn)));
    if (turn % 2 == 0) continue;
    std::thread same([&] { ask(episode, messages); });
    ask(episode, messages);
    same.join();
  }
  return server->Close(episode.key);
}

TEST_F(EpisodeServerTest, DrawsTheSameHoweverManyEpisodesAreOpen) {
  Start();
  const auto ask = [](const OpenEpisode& episode, const json& messages) { return Answer(episode, messages); };
  const auto ids_of = [](const EpisodeRecord& record) {
    std::vector<std::vector<int32_t>> ids;
    for (const EpisodeSequence& sequence : record.sequences) ids.push_back(sequence.ids);
    return ids;
  };
  std::vector<std::vector<std::vector<int32_t>>> alone, together(8);
  for (int seed = 0; seed < 8; ++seed) alone.push_back(ids_of(Play(server_.get(), seed, ask)));
  std::vector<std::thread> agents;
  for (int seed = 0; seed < 8; ++seed) {
    agents.emplace_back([&, seed] { together[seed] = ids_of(Play(server_.get(), seed, ask)); });
  }
  for (std::thread& agent : agents) agent.join();
  EXPECT_EQ(alone, together);
  EXPECT_NE(alone[0], alone[1]);
}

}  // namespace
}  // namespace quartet
