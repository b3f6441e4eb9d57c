// What stands between an agent and its policy, of a conversation that has grown to so many tokens: turns of about 400
// tokens of a tool behind about 100 that were drawn, each drawn otherwise than its text is encoded.
//
//   QUARTET_MODEL=FOLDER bazel run -c opt //orchestrator/agents:episode_server_benchmark
//
// FOLDER: a model's, of which tokenizer and chat template are read. Http is a whole request over a socket, its answer
// drawn in no time; Begin is what an Episode does with it, and Template and Encode are what that would take of the
// whole text: nothing is encoded again of what was there before.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "core/base/logging.h"
#include "core/http/testing/http_client.h"
#include "core/model/model_config.h"
#include "orchestrator/agents/episode.h"
#include "orchestrator/agents/episode_server.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kToolWords = 300, kDrawnWords = 75;

// Words of the numbers from `from` on, of which no two turns have the same.
std::string Words(int64_t from, int count) {
  static constexpr const char* kNames[] = {"find", "the file", "result:", "line", "of", "(error)", "value", "x = y"};
  std::string text;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, i % 10 == 0 ? absl::StrCat(from + i) : kNames[i % 8], " ");
  return text + ".";
}

class Conversation {
 public:
  Conversation() {
    const char* const folder = std::getenv("QUARTET_MODEL");
    QUARTET_CHECK(folder != nullptr) << "QUARTET_MODEL names no folder of a model";
    auto tokenizer = Tokenizer::Load(folder, {.date = absl::CivilDay(2026, 1, 2)});
    QUARTET_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
    tokenizer_ = *std::move(tokenizer);
    const auto model = ReadModelConfig(folder);
    QUARTET_CHECK(model.ok()) << model.status().ToString();
    ends_.assign(model->eos_token_ids.begin(), model->eos_token_ids.end());
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::vector<int32_t>& ends() const { return ends_; }
  const std::vector<ChatMessage>& messages() const { return messages_; }

  // What is drawn next. Words are cut into ids one by one.
  std::vector<int32_t> Draw() const {
    std::vector<int32_t> ids;
    const std::string text = NextAnswer();
    for (size_t at = 0; at < text.size(); at += 3) {
      const auto part = tokenizer_->Encode(text.substr(at, 3), false).value();
      ids.insert(ids.end(), part.begin(), part.end());
    }
    ids.push_back(ends_[0]);
    return ids;
  }
  std::string NextAnswer() const { return Words(std::ssize(messages_), kDrawnWords); }
  void Ask() { messages_.push_back(MakeChatMessage("user", Words(1000 * std::ssize(messages_), kToolWords))); }
  void Answered() { messages_.push_back(MakeChatMessage("assistant", NextAnswer())); }
  int64_t Tokens() const { return std::ssize(tokenizer_->Encode(Text(), false).value()); }
  std::string Text() const { return tokenizer_->ApplyChatTemplate(messages_, true, Json::object()).value(); }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<int32_t> ends_;
  std::vector<ChatMessage> messages_;
};

// Until its prompt has `tokens`: `play` answers what is asked.
template <typename Play>
void Grow(Conversation& conversation, int64_t tokens, const Play& play) {
  conversation.Ask();
  while (conversation.Tokens() < tokens) {
    play();
    conversation.Answered();
    conversation.Ask();
  }
}

void Count(benchmark::State& state, const Conversation& conversation) {
  state.counters["tokens"] = static_cast<double>(conversation.Tokens());
  state.counters["messages"] = static_cast<double>(conversation.messages().size());
}

void Begin(benchmark::State& state) {
  Conversation conversation;
  Episode episode(&conversation.tokenizer(), conversation.ends());
  const auto begin = [&] { return episode.Begin(conversation.messages(), Json::object()).value(); };
  Grow(conversation, state.range(0), [&] {
    DrawnAnswer drawn = {.ids = conversation.Draw()};
    drawn.log_probs.resize(drawn.ids.size());
    drawn.sampled_log_probs.resize(drawn.ids.size());
    episode.Answered(begin().turn, std::move(drawn), MakeChatMessage("assistant", conversation.NextAnswer()));
  });
  int64_t prompt = 0;
  for (auto _ : state) prompt = std::ssize(begin().prompt);
  Count(state, conversation);
  state.counters["tokens"] = static_cast<double>(prompt);
}

void Http(benchmark::State& state) {
  Conversation conversation;
  EpisodeServerOptions options;
  options.episode = {.tokenizer = &conversation.tokenizer(),
                     .vocab_size = conversation.tokenizer().vocab_size(),
                     .model = "policy",
                     .end_token_ids = conversation.ends(),
                     .max_len = 1 << 20,
                     .max_turns = 1 << 20};
  int64_t prompt_tokens = 0;
  std::vector<int32_t> next;  // to be drawn
  options.episode.generate = [&](const GenerateHeader&, const Prompt& prompt, const std::stop_token&) {
    prompt_tokens = prompt.ids_size();
    GeneratedSequence drawn;
    *drawn.mutable_tokens()->mutable_ids() = prompt.ids();
    for (const int32_t id : next) {
      drawn.mutable_tokens()->add_ids(id);
      drawn.add_log_probs(-1);
      drawn.add_sampled_log_probs(-1);
      drawn.add_policy_versions(1);
    }
    return absl::StatusOr<GeneratedSequence>(std::move(drawn));
  };
  const auto server = EpisodeServer::Start(std::move(options));
  QUARTET_CHECK(server.ok()) << server.status().ToString();
  GenerateHeader generation;
  generation.mutable_sampling()->set_max_new_tokens(1 << 10);
  generation.mutable_sampling()->set_temperature(1);
  generation.mutable_sampling()->set_top_p(1);
  generation.mutable_sampling()->set_top_k(-1);
  (*server)->SetGeneration(generation);
  const OpenEpisode open = (*server)->Open(/*seed=*/1);
  HttpClient client(std::atoi(open.base_url.substr(open.base_url.rfind(':') + 1).c_str()));
  const std::string path = open.base_url.substr(open.base_url.find("/episodes")) + "/chat/completions";
  const auto ask = [&](const std::string& body) {
    client.Ask("POST", path, body, {{"Authorization", absl::StrCat("Bearer ", open.api_key)}});
    const HttpAnswer answer = client.Read();
    QUARTET_CHECK(answer.status == 200) << answer.body;
  };
  const auto body = [&] { return Json{{"messages", conversation.messages()}}.dump(); };
  Grow(conversation, state.range(0), [&] {
    next = conversation.Draw();
    ask(body());
  });
  next = conversation.Draw();
  const std::string last = body();
  for (auto _ : state) ask(last);
  Count(state, conversation);
  state.counters["tokens"] = static_cast<double>(prompt_tokens);
  const EpisodeRecord record = (*server)->Close(open.key);
  // The last one, and those that were drawn again behind its prompt.
  QUARTET_CHECK(std::ssize(record.sequences) == state.iterations()) << record.sequences.size();
}

void Template(benchmark::State& state) {
  Conversation conversation;
  Grow(conversation, state.range(0), [] {});
  for (auto _ : state) benchmark::DoNotOptimize(conversation.Text());
  Count(state, conversation);
}

void Encode(benchmark::State& state) {
  Conversation conversation;
  Grow(conversation, state.range(0), [] {});
  const std::string text = conversation.Text();
  for (auto _ : state) benchmark::DoNotOptimize(conversation.tokenizer().Encode(text, false));
  Count(state, conversation);
}

BENCHMARK(Http)->Arg(1000)->Arg(8000)->Arg(32000)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(Begin)->Arg(1000)->Arg(8000)->Arg(32000)->Unit(benchmark::kMillisecond);
BENCHMARK(Template)->Arg(32000)->Unit(benchmark::kMillisecond);
BENCHMARK(Encode)->Arg(32000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quartet
