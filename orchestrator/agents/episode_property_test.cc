// Random agents and random policies against chat templates: what every episode holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/data/json.h"
#include "orchestrator/agents/episode.h"
#include "orchestrator/agents/testing/template_tokenizer.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;
using Chat = std::vector<ChatMessage>;

constexpr char kEmptyThought[] = "<think>\n\n</think>\n\n";

struct DrawnTurn {
  std::vector<int32_t> prompt;
  std::string prompt_text;
  DrawnAnswer drawn;
};

struct Counts {
  int64_t turns = 0, whole = 0, refused = 0, mismatches = 0, tokens = 0, untrained = 0, sequences = 0;
};

// How many of the tokens in `turns` are not trained exactly once, behind exactly the ids that they were drawn behind.
// Log-probabilities tell them apart.
int64_t CountUntrained(const std::vector<EpisodeSequence>& sequences, const std::vector<DrawnTurn>& turns) {
  std::map<float, std::pair<size_t, size_t>> token_of;
  std::vector<std::vector<int>> trained;
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    const auto& log_probs = turns[turn].drawn.log_probs;
    for (size_t k = 0; k < log_probs.size(); ++k) token_of[log_probs[k]] = {turn, k};
    trained.emplace_back(log_probs.size());
  }
  int64_t wrong = 0;
  for (const EpisodeSequence& sequence : sequences) {
    if (sequence.is_action.size() != sequence.ids.size() ||
        std::ranges::count(sequence.is_action, true) != static_cast<int64_t>(sequence.log_probs.size())) {
      return token_of.size();
    }
    size_t action = 0;
    bool in_place = false;  // of the turn, so far
    for (size_t at = 0; at < sequence.ids.size(); ++at) {
      if (!sequence.is_action[at]) continue;
      const auto [turn, k] = token_of.at(sequence.log_probs[action]);
      const DrawnTurn& of = turns[turn];
      if (k == 0) {
        in_place = std::vector<int32_t>(sequence.ids.begin(), sequence.ids.begin() + at) == of.prompt;
      } else if (action == 0 || !sequence.is_action[at - 1] ||
                 token_of.at(sequence.log_probs[action - 1]) != std::pair(turn, k - 1)) {
        in_place = false;
      }
      in_place = in_place && sequence.ids[at] == of.drawn.ids[k];
      if (in_place) ++trained[turn][k];
      ++action;
    }
  }
  for (const auto& of_turn : trained) wrong += std::ranges::count_if(of_turn, [](int times) { return times != 1; });
  return wrong;
}

// What who knows texts alone would train on: each answer behind its prompt, both encoded again.
std::vector<EpisodeSequence> EncodedAgain(const Tokenizer& tokenizer, const std::vector<DrawnTurn>& turns) {
  std::vector<EpisodeSequence> sequences;
  for (const DrawnTurn& turn : turns) {
    const std::string answer = tokenizer.Decode(turn.drawn.ids, false);
    EpisodeSequence sequence{.ids = tokenizer.Encode(turn.prompt_text + answer, false).value()};
    const size_t prompt = tokenizer.Encode(turn.prompt_text, false)->size();
    sequence.is_action.resize(prompt, false);
    sequence.is_action.resize(std::min(sequence.ids.size(), prompt + turn.drawn.ids.size()), true);
    sequence.is_action.resize(sequence.ids.size(), false);
    const int64_t actions = std::ranges::count(sequence.is_action, true);
    sequence.log_probs.assign(turn.drawn.log_probs.begin(), turn.drawn.log_probs.begin() + actions);
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

// One episode. With `exact`, answers are drawn with the white space that the template writes.
class RandomEpisode {
 public:
  RandomEpisode(const Tokenizer& tokenizer, const std::string& end, bool thinks, bool exact, uint64_t seed)
      : tokenizer_(tokenizer),
        end_(end),
        end_id_(tokenizer.TokenToId(end).value()),
        thinks_(thinks),
        exact_(exact),
        random_(seed),
        episode_(&tokenizer, {end_id_}) {}

  void Play(Counts* counts) {
    counts_ = counts;
    Open();
    const int steps = 10 + Below(20);
    for (int step = 0; step < steps; ++step) {
      const int what = Below(10);
      if (what < 4) {
        Ask(Chance(0.7) ? threads_.size() - 1 : Below(threads_.size()));
      } else if (what < 8) {
        AnswerOne();
      } else if (what == 8) {
        BranchOff();
      } else {
        const size_t same = Below(threads_.size());  // the same request, once more
        Ask(same);
        Ask(same);
      }
    }
    while (!asked_.empty()) AnswerOne();
    const std::vector<EpisodeSequence> sequences = episode_.Sequences();
    for (const DrawnTurn& turn : turns_) counts_->tokens += turn.drawn.ids.size();
    counts_->sequences += sequences.size();
    counts_->untrained += CountUntrained(sequences, turns_);
  }
  const std::vector<DrawnTurn>& turns() const { return turns_; }

 private:
  struct Thread {
    Chat messages;  // with the answers as they were
    Json kwargs = Json::object();
  };
  struct Asked {
    Thread thread;
    EpisodeRequest request;
    std::string text;
  };

  bool Chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  size_t Below(size_t end) { return random_() % end; }

  // Never the same twice.
  std::string Words() {
    static constexpr const char* kWords[] = {"the",        "answer", "caf\u00e9", "is",   "\n",
                                             "{\"a\": 1}", "12",     "x;",        "isn't"};
    std::string text = absl::StrCat("n", ++words_);
    for (size_t more = Below(5); more > 0; --more) absl::StrAppend(&text, " ", kWords[Below(std::size(kWords))]);
    return absl::StrCat(text, " .");
  }

  Json Tools() {
    return Json::parse(R"([{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters":
        {"type": "object", "properties": {"z": {"type": "string", "description": "what"}, "a": {"type": "number",
         "description": "more"}}, "required": ["z"]}}}])");
  }

  void Open() {
    Thread thread;
    if (Chance(0.6))
      thread.messages.push_back(MakeChatMessage("system", absl::StrCat("It is ", Below(24), " o'clock.")));
    if (Chance(0.2)) {
      thread.messages.push_back(MakeChatMessage("user", Words()));
      thread.messages.push_back(MakeChatMessage("assistant", "as an example: " + Words()));
    }
    thread.messages.push_back(MakeChatMessage("user", Words()));
    if (Chance(0.7)) thread.kwargs["tools"] = Tools();
    if (thinks_ && Chance(0.3)) thread.kwargs["enable_thinking"] = false;
    // What this template does not write.
    for (const char* kwarg : {"enable_thinking", "tools"}) {
      if (!Writes(thread)) thread.kwargs.erase(kwarg);
    }
    if (!Writes(thread) && thread.messages[0]["role"] == "system") thread.messages.erase(thread.messages.begin());
    if (!Writes(thread)) thread.kwargs["tools"] = Tools();  // which some cannot do without
    threads_.push_back(thread);
  }

  bool Writes(const Thread& thread) const {
    return tokenizer_.ApplyChatTemplate(thread.messages, true, thread.kwargs).ok();
  }
  // Agents seldom ask again for what a template refuses, such as two questions in a row.
  void Keep(Thread thread) {
    if (Writes(thread) || Chance(0.1)) threads_.push_back(std::move(thread));
  }

  void BranchOff() {
    Thread thread = threads_[Below(threads_.size())];
    switch (Below(5)) {
      case 0:  // a sub-agent with another prefix
        return Open();
      case 1:  // one with the same prefix
        thread.messages.push_back(MakeChatMessage("user", Words()));
        break;
      case 2:  // the time in the system prompt has changed
        thread.messages[0] = MakeChatMessage("system", absl::StrCat("It is ", Below(24), " o'clock."));
        if (thread.messages.size() == 1) thread.messages.push_back(MakeChatMessage("user", Words()));
        break;
      case 3:  // other tools
        if (thread.kwargs.contains("tools")) thread.kwargs.erase("tools");
        break;
      default:  // back to an earlier question, which may be put otherwise
        for (size_t turns = 1 + Below(3); turns > 0; --turns) {
          size_t question = thread.messages.size() - 1;
          while (question > 0 && thread.messages[question]["role"] != "user") --question;
          if (thread.messages[question]["role"] != "user") break;
          thread.messages.resize(turns > 1 && question > 1 ? question : question + 1);
        }
        if (thread.messages.back()["role"] != "user") thread.messages.push_back(MakeChatMessage("user", Words()));
        if (Chance(0.5)) thread.messages.back()["content"] = Words();
    }
    Keep(std::move(thread));
  }

  // What a client makes of the messages that it got.
  ChatMessage AsClientsWrite(ChatMessage message) {
    if (message["role"] != "assistant" || !answers_.contains(message)) return message;
    const bool tells = message.contains("tool_calls") || (message["content"].is_string() && message["content"] != "");
    if (tells && Chance(0.6)) message.erase("reasoning_content");
    if (message["content"].is_string() && Chance(0.5)) {
      auto content = message["content"].get<std::string>();
      absl::StripAsciiWhitespace(&content);
      message["content"] = Chance(0.5) ? content : content + "\n";
    }
    if (message.contains("tool_calls") && message["content"] == "") message["content"] = nullptr;
    if (message.contains("tool_calls")) {
      for (Json& call : message["tool_calls"]) {
        Json& arguments = call["function"]["arguments"];
        if (Chance(0.5)) arguments = Json::parse(nlohmann::json(arguments).dump());  // sorts the names
        for (auto& [name, value] : arguments.items()) {
          if (value == 2.0 && Chance(0.5)) value = 2;
        }
        if (Chance(0.5)) arguments = arguments.dump();
      }
    }
    return ReadChatMessage(message, "message").value();
  }

  void Ask(size_t from) {
    const Thread& thread = threads_[from];
    Chat messages;
    for (const ChatMessage& message : thread.messages) messages.push_back(AsClientsWrite(message));
    const auto text = tokenizer_.ApplyChatTemplate(thread.messages, true, thread.kwargs);
    auto request = episode_.Begin(std::move(messages), thread.kwargs);
    EXPECT_EQ(request.ok(), text.ok()) << text.status() << request.status();
    if (!request.ok() || !text.ok()) {
      ++counts_->refused;
      return;
    }
    ++counts_->turns;
    if (request->prompt == tokenizer_.Encode(*text, false).value()) ++counts_->whole;
    const std::string decoded = tokenizer_.Decode(request->prompt, false);
    if (Comparable(decoded) != Comparable(*text)) {
      if (++counts_->mismatches <= 3)
        ADD_FAILURE() << "the prompt is\n" << decoded << "\nthe template writes\n" << *text;
    }
    asked_.push_back({thread, *std::move(request), *text});
  }
  std::string Comparable(const std::string& text) const {
    std::string comparable = absl::StrReplaceAll(text, {{kEmptyThought, ""}});
    if (!exact_) comparable = absl::StrReplaceAll(comparable, {{" ", ""}, {"\n", ""}});
    return comparable;
  }

  void AnswerOne() {
    if (asked_.empty()) return;
    const size_t which = Below(asked_.size());
    Asked asked = std::move(asked_[which]);
    asked_.erase(asked_.begin() + which);
    if (Chance(0.05)) return;  // never delivered
    auto [message, drawn] = Draw(asked);
    episode_.Answered(asked.request.turn, drawn, message);
    turns_.push_back({asked.request.prompt, asked.text, drawn});
    answers_.insert(message);

    Thread thread = std::move(asked.thread);
    thread.messages.push_back(message);
    const Json calls = message.value("tool_calls", Json::array());
    for (const Json& call : calls) {
      thread.messages.push_back({{"role", "tool"}, {"content", Words()}, {"tool_call_id", call["id"]}});
    }
    if (calls.empty() || Chance(0.1)) thread.messages.push_back(MakeChatMessage("user", Words()));
    Keep(std::move(thread));
  }

  ChatMessage Answer(const Thread& thread) {
    ChatMessage message = {{"role", "assistant"}, {"content", Words()}};
    if (thinks_ && !thread.kwargs.contains("enable_thinking") && Chance(0.7)) message["reasoning_content"] = Words();
    if (Chance(0.5)) {
      if (Chance(0.6)) message["content"] = Chance(0.5) ? Json("") : Json(nullptr);
      for (size_t more = 1 + Below(3); more > 0; --more) {
        message["tool_calls"].push_back(
            {{"id", absl::StrCat("call", 10000 + ++words_)},
             {"type", "function"},
             {"function", {{"name", "add"}, {"arguments", {{"z", Words()}, {"a", 2.0}, {"list", {1, nullptr}}}}}}});
      }
    }
    return message;
  }

  std::pair<ChatMessage, DrawnAnswer> Draw(const Asked& asked) {
    ChatMessage message = Answer(asked.thread);
    Chat whole = asked.thread.messages;
    whole.push_back(message);
    auto written = tokenizer_.ApplyChatTemplate(whole, false, asked.thread.kwargs);
    if (!written.ok()) {  // a call that the template does not write is text
      message = {{"role", "assistant"}, {"content", Words()}};
      whole.back() = message;
      written = tokenizer_.ApplyChatTemplate(whole, false, asked.thread.kwargs);
    }
    std::string text = message["content"].is_string() ? message["content"].get<std::string>() : "";
    if (written.ok() && written->starts_with(asked.text)) {
      text = written->substr(asked.text.size());
      text.resize(std::min(text.size(), text.rfind(end_)));
    }
    if (!exact_) text = absl::StrReplaceAll(text, {{"\": ", "\":"}});

    DrawnAnswer drawn;
    drawn.ids = Otherwise(text);
    if (!message.contains("tool_calls") && Chance(0.15)) {
      Cut(text, &message, &drawn.ids);
    } else {
      drawn.ids.push_back(end_id_);
      if (!exact_ && message["content"].is_string() && message["content"] != "") {
        message["content"] = "\n " + message["content"].get<std::string>() + " ";
      }
    }
    for (size_t i = 0; i < drawn.ids.size(); ++i) drawn.log_probs.push_back(-++drawn_);
    return {message, drawn};
  }

  // Ids that read as `text`, though it is most often encoded otherwise.
  std::vector<int32_t> Otherwise(std::string_view text) {
    const size_t longest = 1 + Below(12);
    std::vector<int32_t> ids;
    while (!text.empty()) {
      size_t size = std::min(text.size(), 1 + Below(longest));
      while (size < text.size() && (text[size] & 0xc0) == 0x80) ++size;
      const std::vector<int32_t> part = tokenizer_.Encode(text.substr(0, size), false).value();
      ids.insert(ids.end(), part.begin(), part.end());
      text.remove_prefix(size);
    }
    return ids;
  }

  // Leaves an answer of no calls that has no more tokens.
  void Cut(const std::string& text, ChatMessage* message, std::vector<int32_t>* ids) {
    if (ids->size() < 2) return;
    ids->resize(1 + Below(ids->size() - 1));
    const auto told = message->at("content").get<std::string>();
    const std::string thought = message->value("reasoning_content", "");
    std::string left = tokenizer_.Decode(*ids, false);
    while (ids->size() > 1 && (!text.starts_with(left) || (exact_ && absl::ascii_isspace(left.back())))) {
      ids->pop_back();
      left = tokenizer_.Decode(*ids, false);
    }
    const size_t tells_at = text.rfind(told), thinks_at = text.find(thought);
    (*message)["content"] = left.size() > tells_at ? left.substr(tells_at) : "";
    if (left.size() > tells_at || thought.empty()) return;
    message->erase("reasoning_content");
    if (left.size() > thinks_at) (*message)["reasoning_content"] = left.substr(thinks_at, thought.size());
  }

  const Tokenizer& tokenizer_;
  const std::string end_;
  const int32_t end_id_;
  const bool thinks_, exact_;
  std::mt19937_64 random_;
  Episode episode_;
  Counts* counts_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Asked> asked_;
  std::vector<DrawnTurn> turns_;
  std::set<ChatMessage> answers_;
  int words_ = 0;
  float drawn_ = 0;
};

// By name: the templates here, or those in the folder QUARTET_TEMPLATES, and the one that transformers was asked about,
// whose turns have no end.
std::map<std::string, std::string> AllTemplates() {
  std::map<std::string, std::string> templates;
  const char* given = std::getenv("QUARTET_TEMPLATES");
  for (const auto& file :
       std::filesystem::directory_iterator(given == nullptr ? "orchestrator/agents/testdata" : given)) {
    if (file.path().extension() == ".jinja") {
      templates[file.path().stem()] = ReadTextFile(file.path(), 1 << 20).value();
    }
  }
  templates["without_ends"] = ReadJsonFile("core/tokenizer/testdata/tool_chats.json", 1 << 20)->at("template");
  return templates;
}

// QUARTET_CONVERSATIONS says how many a template.
TEST(EpisodeProperty, TrainsEachTokenOnceBehindTheIdsThatItWasDrawnBehind) {
  const char* given = std::getenv("QUARTET_CONVERSATIONS");
  const int conversations = given == nullptr ? 40 : std::atoi(given);
  const std::map<std::string, std::string> templates = AllTemplates();
  ASSERT_GE(templates.size(), std::getenv("QUARTET_TEMPLATES") == nullptr ? 9 : 2);
  for (const auto& [name, source] : templates) {
    SCOPED_TRACE(name);
    const auto tokenizer = TemplateTokenizer(source);
    const bool thinks = absl::StrContains(source, "reasoning_content");
    Counts counts;
    int fail_encoded_again = 0;
    for (int i = 0; i < conversations; ++i) {
      RandomEpisode episode(*tokenizer, EndOfTurns(source), thinks, /*exact=*/i % 2 == 0, i);
      episode.Play(&counts);
      if (CountUntrained(EncodedAgain(*tokenizer, episode.turns()), episode.turns()) > 0) ++fail_encoded_again;
    }
    std::cout << name << ": " << conversations << " conversations, " << counts.turns << " requests (" << counts.refused
              << " refused), " << counts.whole << " prompts as the text is encoded, " << counts.mismatches
              << " mismatches; " << counts.tokens << " tokens drawn, " << counts.untrained << " not trained, "
              << counts.sequences << " sequences; encoded again, " << fail_encoded_again << " conversations fail\n";
    EXPECT_EQ(counts.mismatches, 0);
    EXPECT_EQ(counts.untrained, 0);
    EXPECT_GT(counts.tokens, 50 * conversations);
    EXPECT_LT(counts.refused, counts.turns / 10);
    EXPECT_GT(fail_encoded_again, conversations * 2 / 3) << "the test would not see that ids are encoded again";
    // Going on must be the rule where the template allows it.
    if (std::getenv("QUARTET_TEMPLATES") == nullptr && name != "without_ends" && name != "closes") {
      EXPECT_LT(counts.whole, counts.turns * 19 / 20);
    }
  }
}

}  // namespace
}  // namespace quartet
