// Tests of agents over real sockets, before a policy that draws what it is told to.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/http/testing/http_client.h"
#include "orchestrator/agents/episode_server.h"
#include "orchestrator/agents/testing/scripted_policy.h"

namespace quartet {

inline nlohmann::json Message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}
inline nlohmann::json Question(const std::string& content) { return nlohmann::json::array({Message("user", content)}); }
inline nlohmann::json ErrorOf(const HttpAnswer& answer) { return nlohmann::json::parse(answer.body).at("error"); }

class ServedAgents : public ::testing::Test {
 protected:
  using json = nlohmann::json;

  void Start(Say say = {}, const std::string& chat_template = "grouped_results",
             const std::function<void(EpisodeServerOptions*)>& change = {}) {
    std::ifstream source(absl::StrCat("orchestrator/agents/testdata/", chat_template, ".jinja"));
    ASSERT_TRUE(source.good()) << chat_template;
    tokenizer_ = TemplateTokenizer(std::string(std::istreambuf_iterator<char>(source), {}));
    policy_ = std::make_unique<ScriptedPolicy>(tokenizer_.get(), std::move(say));
    EpisodeServerOptions options;
    options.episode.tokenizer = tokenizer_.get();
    options.episode.vocab_size = tokenizer_->vocab_size();
    options.episode.model = "policy";
    options.episode.end_token_ids = kTemplateEnds;
    options.episode.max_len = 4096;
    options.episode.max_turns = 20;
    options.episode.generate = [this](const GenerateHeader& header, const Prompt& prompt,
                                      const std::stop_token& give_up) {
      return policy_->Generate(header, prompt, give_up);
    };
    options.notice = [this](const std::string& notice) { notices_.push_back(notice); };
    if (change) change(&options);
    auto server = EpisodeServer::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    generation_.set_policy_version(7);
    generation_.mutable_sampling()->set_temperature(0.5F);
    generation_.mutable_sampling()->set_top_p(0.75F);
    generation_.mutable_sampling()->set_max_new_tokens(256);
    server_->SetGeneration(generation_);
  }

  static int PortOf(const OpenEpisode& episode) {
    return std::atoi(episode.base_url.substr(episode.base_url.rfind(':') + 1).c_str());
  }
  static std::string PathOf(const OpenEpisode& episode) {
    return episode.base_url.substr(episode.base_url.find("/episodes"));
  }
  static std::map<std::string, std::string> KeyOf(const OpenEpisode& episode) {
    return {{"Authorization", absl::StrCat("Bearer ", episode.api_key)}};
  }
  static HttpAnswer Post(const OpenEpisode& episode, json body) {
    return HttpAsk(PortOf(episode), "POST", PathOf(episode) + "/chat/completions", body.dump(), KeyOf(episode));
  }
  static HttpAnswer Chat(const OpenEpisode& episode, json messages, json more = json::object()) {
    more["messages"] = std::move(messages);
    return Post(episode, std::move(more));
  }
  // The message that is answered.
  static json Answer(const OpenEpisode& episode, json messages, json more = json::object()) {
    const HttpAnswer answer = Chat(episode, std::move(messages), std::move(more));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? json::parse(answer.body)["choices"][0]["message"] : Message("assistant", "");
  }
  static void Begin(HttpClient& client, const OpenEpisode& episode, json more = json::object()) {
    more["messages"] = Question("hi");
    client.Ask("POST", PathOf(episode) + "/chat/completions", more.dump(), KeyOf(episode));
  }
  std::string Text(const EpisodeSequence& sequence, bool actions) const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < sequence.ids.size(); ++i) {
      if (sequence.is_action[i] == actions) ids.push_back(sequence.ids[i]);
    }
    return tokenizer_->Decode(ids, /*skip_special_tokens=*/false);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ScriptedPolicy> policy_;
  std::vector<std::string> notices_;
  GenerateHeader generation_;
  std::unique_ptr<EpisodeServer> server_;
};

}  // namespace quartet
