#include "orchestrator/agents/episode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/testing/counted_memory.h"
#include "orchestrator/agents/testing/template_tokenizer.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;
constexpr int32_t kOtherEnd = 0;  // "<|pad|>", which no template writes
using Messages = std::vector<ChatMessage>;

ChatMessage User(const std::string& text) { return MakeChatMessage("user", text); }
ChatMessage Said(const std::string& text) { return MakeChatMessage("assistant", text); }
ChatMessage Thought(const std::string& thought, const std::string& text) {
  return {{"role", "assistant"}, {"content", text}, {"reasoning_content", thought}};
}
ChatMessage Message(const char* json) {
  return ReadChatMessage(nlohmann::ordered_json::parse(json), "message").value();
}

std::string TemplateFile(const std::string& name) {
  std::ifstream file("orchestrator/agents/testdata/" + name + ".jinja");
  EXPECT_TRUE(file.good()) << name;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// An episode with one of the templates of testdata.
class Played {
 public:
  explicit Played(const std::string& name) : tokenizer_(TemplateTokenizer(TemplateFile(name))) {}

  EpisodeRequest Ask(const Messages& messages,
                     const nlohmann::ordered_json& kwargs = nlohmann::ordered_json::object()) {
    return episode_.Begin(messages, kwargs).value();
  }
  // Draws the text letter by letter, which is not how it is encoded; returns the ids.
  Ids Answer(const EpisodeRequest& request, const std::string& text, const ChatMessage& message,
             std::optional<int32_t> end = kTemplateEnds[0]) {
    DrawnAnswer drawn;
    for (const char letter : text) {
      const Ids ids = tokenizer_->Encode(std::string(1, letter), false).value();
      drawn.ids.insert(drawn.ids.end(), ids.begin(), ids.end());
    }
    if (end) drawn.ids.push_back(*end);
    drawn.log_probs.assign(drawn.ids.size(), -1);
    drawn.sampled_log_probs.assign(drawn.ids.size(), -0.5F);
    Ids ids = drawn.ids;
    episode_.Answered(request.turn, std::move(drawn), message);
    return ids;
  }
  std::string Text(const Ids& ids) const { return tokenizer_->Decode(ids, false); }
  Ids Encoded(const std::string& text) const { return tokenizer_->Encode(text, false).value(); }

  Episode& operator*() { return episode_; }
  Episode* operator->() { return &episode_; }

 private:
  const std::unique_ptr<Tokenizer> tokenizer_;
  Episode episode_{tokenizer_.get(), {kOtherEnd, kTemplateEnds[0]}};
};

Ids Together(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}
MATCHER_P(BeginsWith, ids, "") { return arg.size() >= ids.size() && std::equal(ids.begin(), ids.end(), arg.begin()); }

int64_t Actions(const EpisodeSequence& sequence) { return std::ranges::count(sequence.is_action, true); }

TEST(Episode, TrainsOnNothingThatWasNotDelivered) {
  Played episode("grouped_results");
  const EpisodeRequest first = episode.Ask({User("2 and 2?")});
  const Ids lost = episode.Answer(first, "four", Said("four"));
  // A request that came before it was known goes on from it.
  const EpisodeRequest behind = episode.Ask({User("2 and 2?"), Said("four"), User("and 3?")});
  EXPECT_THAT(behind.prompt, BeginsWith(Together(first.prompt, lost)));
  episode->Undelivered(first.turn);
  EXPECT_TRUE(episode->Sequences().empty());

  const Ids drawn = episode.Answer(behind, "seven", Said("seven"));
  auto sequences = episode->Sequences();
  ASSERT_EQ(sequences.size(), 1);
  EXPECT_EQ(sequences[0].ids, Together(behind.prompt, drawn));
  EXPECT_EQ(Actions(sequences[0]), drawn.size());

  // One that came later does not.
  const EpisodeRequest later = episode.Ask({User("2 and 2?"), Said("four"), User("and 4?")});
  EXPECT_EQ(later.prompt, episode.Encoded(later.text));
}

TEST(Episode, LosesNoMessageWhereAnAnswerIsRepeatedByTheClient) {
  for (const char* name : {"grouped_results", "dated", "keeps_thoughts", "drops_thoughts"}) {
    Played episode(name);
    const EpisodeRequest first = episode.Ask({User("a question")});
    const Ids drawn = episode.Answer(first, "Ok.", Said("Ok."));
    const EpisodeRequest second =
        episode.Ask({User("a question"), Said("Ok."), User("a file"), Said("Ok."), User("the end")});
    EXPECT_THAT(episode.Text(second.prompt), testing::HasSubstr("a file")) << name;
    EXPECT_THAT(second.prompt, BeginsWith(first.prompt)) << name;
  }
}

TEST(Episode, GoesOnFromTheIdsThatWereDrawnHoweverTheyWouldBeEncoded) {
  Played episode("grouped_results");
  const EpisodeRequest first = episode.Ask({User("2 and 2?")});
  EXPECT_EQ(first.prompt, episode.Encoded(episode.Text(first.prompt)));
  const Ids drawn = episode.Answer(first, "the answer", Said("the answer"));
  ASSERT_NE(drawn, episode.Encoded("the answer<|end|>"));

  const EpisodeRequest second = episode.Ask({User("2 and 2?"), Said("the answer"), User("and 3?")});
  const Ids kept = Together(first.prompt, drawn);
  ASSERT_THAT(second.prompt, BeginsWith(kept));
  EXPECT_EQ(episode.Text(Ids(second.prompt.begin() + kept.size(), second.prompt.end())),
            "\n<|start|>user\nand 3?<|end|>\n<|start|>assistant\n");

  const Ids last = episode.Answer(second, "7", Said("7"));
  const auto sequences = episode->Sequences();
  ASSERT_EQ(sequences.size(), 1);
  EXPECT_EQ(sequences[0].last_turn, second.turn);
  EXPECT_EQ(sequences[0].ids, Together(second.prompt, last));
  std::vector<bool> is_action(first.prompt.size(), false);
  is_action.resize(kept.size(), true);
  is_action.resize(second.prompt.size(), false);
  is_action.resize(second.prompt.size() + last.size(), true);
  EXPECT_EQ(sequences[0].is_action, is_action);
  EXPECT_EQ(sequences[0].log_probs.size(), drawn.size() + last.size());
  EXPECT_EQ(sequences[0].sampled_log_probs.size(), drawn.size() + last.size());
}

TEST(Episode, KeepsTheEndTokenOfTheTemplateAsContextBehindAnAnswerThatWasCut) {
  Played episode("grouped_results");
  const EpisodeRequest first = episode.Ask({User("count")});
  const Ids drawn = episode.Answer(first, "1, 2, ", Said("1, 2, "), /*end=*/std::nullopt);
  const EpisodeRequest second = episode.Ask({User("count"), Said("1, 2,"), User("go on")});
  EXPECT_THAT(second.prompt, BeginsWith(Together(Together(first.prompt, drawn), {kTemplateEnds[0]})));
  const Ids last = episode.Answer(second, "3", Said("3"));
  const auto sequences = episode->Sequences();
  ASSERT_EQ(sequences.size(), 1);
  EXPECT_EQ(Actions(sequences[0]), drawn.size() + last.size());
  EXPECT_FALSE(sequences[0].is_action[first.prompt.size() + drawn.size()]);
}

TEST(Episode, BeginsABranchBehindAnEndTokenThatTheTemplateDoesNotWrite) {
  Played episode("grouped_results");
  const EpisodeRequest first = episode.Ask({User("count")});
  episode.Answer(first, "1", Said("1"), kOtherEnd);
  const EpisodeRequest second = episode.Ask({User("count"), Said("1"), User("go on")});
  EXPECT_EQ(second.prompt, episode.Encoded(episode.Text(second.prompt)));
  EXPECT_THAT(episode.Text(second.prompt), HasSubstr("1<|end|>"));
}

TEST(Episode, BeginsABranchBehindAThoughtThatWasCut) {
  Played episode("keeps_thoughts");
  const EpisodeRequest first = episode.Ask({User("why?")});
  EXPECT_THAT(episode.Text(first.prompt), EndsWith("<think>\n"));
  for (const std::string cut : {"since it", "since it\n</think>"}) {
    const Ids drawn = episode.Answer(episode.Ask({User("why?")}), cut, Thought("since it", ""), /*end=*/std::nullopt);
    const EpisodeRequest second = episode.Ask({User("why?"), Thought("since it", ""), User("go on")});
    EXPECT_THAT(second.prompt, testing::Not(BeginsWith(Together(first.prompt, drawn))));
    EXPECT_THAT(episode.Text(second.prompt), HasSubstr("<think>\nsince it\n</think>\n\n<|end|>"));
  }
}

TEST(Episode, PutsBackTheThoughtThatAClientLeavesOut) {
  Played episode("keeps_thoughts");
  const EpisodeRequest first = episode.Ask({User("why?")});
  const Ids drawn = episode.Answer(first, "thus\n</think>\n\nso", Thought("thus", "so"));
  const EpisodeRequest second = episode.Ask({User("why?"), Said(" so\n"), User("and?")});
  EXPECT_THAT(second.prompt, BeginsWith(Together(first.prompt, drawn)));
}

TEST(Episode, PutsBackTheThoughtOfTheConversationThatGoesOn) {
  Played episode("keeps_thoughts");
  // The same words twice, with other thoughts; the first is gone on from before the second comes.
  const EpisodeRequest first = episode.Ask({User("why?")}), second = episode.Ask({User("why?")});
  episode.Answer(first, "since\n</think>\n\nOk.", Thought("since", "Ok."));
  const EpisodeRequest third = episode.Ask({User("why?"), Said("Ok."), User("and?")});
  const Ids third_drawn = episode.Answer(third, "thus\n</think>\n\nso", Thought("thus", "so"));
  episode.Answer(second, "maybe\n</think>\n\nOk.", Thought("maybe", "Ok."));
  const EpisodeRequest fourth = episode.Ask({User("why?"), Said("Ok."), User("and?"), Said("so"), User("bye")});
  EXPECT_THAT(fourth.prompt, BeginsWith(Together(third.prompt, third_drawn)));
  EXPECT_THAT(episode.Text(fourth.prompt), testing::Not(HasSubstr("maybe")));
}

TEST(Episode, PutsBackThoughtsWhereTheClientDroppedWhatCameFirst) {
  Played episode("keeps_thoughts");
  Messages all, told;
  for (const char* number : {"one", "two", "three"}) {
    all.push_back(User(number));
    told.push_back(all.back());
    const EpisodeRequest request = episode.Ask(told);
    episode.Answer(request, std::string(number) + "\n</think>\n\nOk.", Thought(number, "Ok."));
    all.push_back(Thought(number, "Ok."));
    told.push_back(Said("Ok."));
  }
  all.push_back(User("bye"));
  told.push_back(User("bye"));
  const auto from_second = [](const Messages& messages) { return Messages(messages.begin() + 2, messages.end()); };
  EXPECT_EQ(episode.Text(episode.Ask(from_second(told)).prompt), episode.Text(episode.Ask(from_second(all)).prompt));
}

TEST(Episode, PutsBackTheThoughtThatCameWithTheSameTools) {
  Played episode("keeps_thoughts");
  const nlohmann::ordered_json tools = {{"tools", nlohmann::ordered_json::array({{{"name", "add"}}})}};
  const EpisodeRequest with = episode.Ask({User("why?")}, tools), without = episode.Ask({User("why?")});
  const Ids drawn = episode.Answer(with, "since\n</think>\n\nOk.", Thought("since", "Ok."));
  episode.Answer(without, "maybe\n</think>\n\nOk.", Thought("maybe", "Ok."));
  const EpisodeRequest next = episode.Ask({User("why?"), Said("Ok."), User("and?")}, tools);
  EXPECT_THAT(next.prompt, BeginsWith(Together(with.prompt, drawn)));
}

TEST(Episode, BeginsABranchBehindAnAnswerThatEndedWithinAThoughtOrACall) {
  Played thinking("keeps_thoughts");
  const EpisodeRequest why = thinking.Ask({User("why?")});
  for (const bool closed : {false, true}) {
    const Ids drawn = thinking.Answer(thinking.Ask({User("why?")}), closed ? "since it </think>" : "since it",
                                      Thought("since it", ""));
    const EpisodeRequest next = thinking.Ask({User("why?"), Thought("since it", ""), User("go on")});
    const auto begins = BeginsWith(Together(why.prompt, drawn));
    EXPECT_EQ(testing::Value(next.prompt, begins), closed) << thinking.Text(next.prompt);
    EXPECT_THAT(thinking.Text(next.prompt), HasSubstr("</think>"));
  }
  Played calling("grouped_results");
  const ChatMessage call = Message(R"({"role": "assistant", "tool_calls": [{"id": "c1", "name": "now"}]})");
  const EpisodeRequest when = calling.Ask({User("when?")});
  for (const bool closed : {false, true}) {
    const Ids drawn =
        calling.Answer(calling.Ask({User("when?")}),
                       absl::StrCat(R"(<tool_call>{"name":"now","arguments":{}})", closed ? "</tool_call>" : ""), call);
    const EpisodeRequest next = calling.Ask({User("when?"), call, Message(R"({"role": "tool", "content": "noon"})")});
    EXPECT_EQ(testing::Value(next.prompt, BeginsWith(Together(when.prompt, drawn))), closed);
    EXPECT_THAT(calling.Text(next.prompt), HasSubstr("</tool_call>"));
  }
}

// The results that follow name them.
TEST(Episode, BeginsABranchWhereTheClientGotOtherIdsOfCallsThanWereDrawn) {
  for (const std::string drawn_id : {"aaaaaaaa1", "aaaaaaaa2"}) {
    Played episode("call_ids");
    const ChatMessage call = Message(
        R"({"role": "assistant", "content": "", "tool_calls": [{"id": "aaaaaaaa2", "function": {"name": "f", "arguments": {}}}]})");
    const EpisodeRequest first = episode.Ask({User("add")});
    const Ids drawn =
        episode.Answer(first, R"([TOOL_CALLS][{"name": "f", "arguments": {}, "id": ")" + drawn_id + R"("}])", call);
    const EpisodeRequest second =
        episode.Ask({User("add"), call, Message(R"({"role": "tool", "content": "3", "tool_call_id": "aaaaaaaa2"})")});
    EXPECT_EQ(testing::Value(second.prompt, BeginsWith(Together(first.prompt, drawn))), drawn_id == "aaaaaaaa2");
  }
}

TEST(Episode, HoldsEachMessageOnceHoweverManyTurnsGoOnFromIt) {
  const auto held = [](int turns) {
    Played episode("grouped_results");
    Messages messages;
    const int64_t before = AllocatedBytes();
    for (int turn = 0; turn < turns; ++turn) {
      messages.push_back(User(absl::StrCat(turn, std::string(1000, 'x'))));
      const EpisodeRequest request = episode.Ask(messages);
      messages.push_back(Said(absl::StrCat("answer ", turn)));
      episode.Answer(request, absl::StrCat("answer ", turn), messages.back());
    }
    messages.clear();
    messages.shrink_to_fit();
    return AllocatedBytes() - before;
  };
  EXPECT_LT(held(40), 3 * held(20));
}

TEST(Episode, TakesTheAnswerForAnotherWhereItsThoughtOrItsTextWasChanged) {
  Played episode("keeps_thoughts");
  const EpisodeRequest first = episode.Ask({User("why?")});
  const Ids drawn = episode.Answer(first, "thus\n</think>\n\nso", Thought("thus", "so"));
  for (const ChatMessage& changed : {Thought("else", "so"), Said("so it is")}) {
    const EpisodeRequest second = episode.Ask({User("why?"), changed, User("and?")});
    EXPECT_EQ(second.prompt, episode.Encoded(episode.Text(second.prompt)));
  }
}

TEST(Episode, FindsCallsAgainWhoseArgumentsAreWrittenOtherwise) {
  Played episode("grouped_results");
  const ChatMessage call = Message(
      R"({"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": {"b": 1.0, "a": [2, null]}}}]})");
  const ChatMessage result = Message(R"({"role": "tool", "content": "3", "tool_call_id": "c1"})");
  const EpisodeRequest first = episode.Ask({User("add")});
  const Ids drawn =
      episode.Answer(first, R"(<tool_call>{"name":"add","arguments":{"b":1.0,"a":[2,null]}}</tool_call>)", call);
  const auto again = [&](const char* arguments, const char* id = "c1") {
    ChatMessage message = call;
    message["content"] = nullptr;
    message["tool_calls"][0]["id"] = id;
    message["tool_calls"][0]["function"]["arguments"] = nlohmann::ordered_json::parse(arguments);
    return episode.Ask({User("add"), message, result}).prompt;
  };
  EXPECT_THAT(again(R"({"a": [2, null], "b": 1})"), BeginsWith(Together(first.prompt, drawn)));
  EXPECT_THAT(again(R"({"a": [2, 0], "b": 1})"), testing::Not(BeginsWith(Together(first.prompt, drawn))));
  EXPECT_THAT(again(R"({"a": [2, null], "b": 1})", "c2"), testing::Not(BeginsWith(Together(first.prompt, drawn))));
}

TEST(Episode, BeginsABranchWhereTheTemplateDropsAThoughtAndGoesOnBeforeIt) {
  Played episode("drops_thoughts");
  const ChatMessage call = Message(
      R"({"role": "assistant", "content": "", "reasoning_content": "it tells", "tool_calls": [{"name": "now"}]})");
  const ChatMessage result = Message(R"({"role": "tool", "content": "noon"})");
  const EpisodeRequest first = episode.Ask({User("hi")});
  const Ids greeted = episode.Answer(first, "hello", Said("hello"));
  const EpisodeRequest second = episode.Ask({User("hi"), Said("hello"), User("when?")});
  const Ids called = episode.Answer(
      second, "<think>\nit tells\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", call);
  const EpisodeRequest third = episode.Ask({User("hi"), Said("hello"), User("when?"), call, result});
  EXPECT_THAT(third.prompt, BeginsWith(Together(second.prompt, called))) << "the question is still the last";
  const Ids told = episode.Answer(third, "<think>\nnoon\n</think>\n\n12", Thought("noon", "12"));

  const EpisodeRequest fourth =
      episode.Ask({User("hi"), Said("hello"), User("when?"), call, result, Said("12"), User("thanks")});
  EXPECT_THAT(episode.Text(fourth.prompt), testing::Not(HasSubstr("think")));
  EXPECT_THAT(fourth.prompt, BeginsWith(Together(first.prompt, greeted)));
  const Ids last = episode.Answer(fourth, "bye", Said("bye"));

  const auto sequences = episode->Sequences();
  ASSERT_EQ(sequences.size(), 2);
  EXPECT_EQ(Actions(sequences[0]) + Actions(sequences[1]), greeted.size() + called.size() + told.size() + last.size());
}

TEST(Episode, BeginsNoBranchForAnEmptyThoughtThatStandsInTheLastTurnAlone) {
  for (const bool asked_not_to_think : {false, true}) {
    Played episode("drops_thoughts");
    nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();
    if (asked_not_to_think) kwargs["enable_thinking"] = false;
    const EpisodeRequest first = episode.Ask({User("hi")}, kwargs);
    const std::string empty = "<think>\n\n</think>\n\n";
    const Ids drawn = episode.Answer(first, asked_not_to_think ? "hello" : empty + "hello", Said("hello"));
    const EpisodeRequest second = episode.Ask({User("hi"), Said("hello"), User("bye")}, kwargs);
    EXPECT_THAT(second.prompt, BeginsWith(Together(first.prompt, drawn)));
    EXPECT_THAT(episode.Text(second.prompt), HasSubstr(empty + "hello<|end|>\n<|start|>user\nbye<|end|>\n<|start|>"));
  }
}

TEST(Episode, KeepsNoThoughtThatTheTemplateFindsInTheContentAndDrops) {
  Played episode("drops_thoughts");
  const EpisodeRequest first = episode.Ask({User("hi")});
  const std::string answer = "<think>\nwho?\n</think>\n\nhello";
  const Ids drawn = episode.Answer(first, answer, Said(answer));
  const EpisodeRequest second = episode.Ask({User("hi"), Said(answer), User("bye")});
  EXPECT_THAT(second.prompt, testing::Not(BeginsWith(Together(first.prompt, drawn))));
  EXPECT_THAT(episode.Text(second.prompt), testing::Not(HasSubstr("who?")));
}

TEST(Episode, KeepsNoCallsThatTheTemplateWritesInTheLastTurnAlone) {
  Played episode("drops_calls");
  const ChatMessage call = Message(R"({"role": "assistant", "content": "I look", "tool_calls": [{"name": "now"}]})");
  const EpisodeRequest first = episode.Ask({User("when?")});
  const Ids drawn = episode.Answer(first, "I look<call>now {}</call>", call);
  const ChatMessage result = Message(R"({"role": "tool", "content": "noon"})");
  EXPECT_THAT(episode.Ask({User("when?"), call, result}).prompt, BeginsWith(Together(first.prompt, drawn)));
  const EpisodeRequest later = episode.Ask({User("when?"), call, result, User("thanks")});
  EXPECT_THAT(episode.Text(later.prompt), testing::Not(HasSubstr("<call>")));
}

TEST(Episode, KeepsNoWordsThatTheTemplateDoesNotWriteBesideCalls) {
  Played episode("dated");
  const ChatMessage call = Message(R"({"role": "assistant", "content": "I look", "tool_calls": [{"name": "now"}]})");
  const EpisodeRequest first = episode.Ask({User("when?")});
  const Ids drawn = episode.Answer(first, "I look{\"name\": \"now\", \"parameters\": {}}", call);
  const EpisodeRequest second = episode.Ask({User("when?"), call, Message(R"({"role": "tool", "content": "noon"})")});
  EXPECT_THAT(episode.Text(second.prompt), testing::Not(HasSubstr("I look")));
}

TEST(Episode, TrainsOnceWhatSubAgentsGoOnFromTogether) {
  Played episode("grouped_results");
  const EpisodeRequest first = episode.Ask({User("plan")});
  const Ids plan = episode.Answer(first, "a, b", Said("a, b"));
  const EpisodeRequest a = episode.Ask({User("plan"), Said("a, b"), User("do a")});
  const EpisodeRequest b = episode.Ask({User("plan"), Said("a, b"), User("do b")});
  const EpisodeRequest other = episode.Ask({MakeChatMessage("system", "You judge."), User("a, b")});
  const Ids judged = episode.Answer(other, "good", Said("good"));
  const Ids did_b = episode.Answer(b, "b it is", Said("b it is"));
  const Ids did_a = episode.Answer(a, "a", Said("a"));
  const auto sequences = episode->Sequences();
  ASSERT_EQ(sequences.size(), 3);
  int64_t actions = 0;
  for (const EpisodeSequence& sequence : sequences) actions += Actions(sequence);
  EXPECT_EQ(actions, plan.size() + judged.size() + did_b.size() + did_a.size());
}

TEST(Episode, GivesTheSameSequencesInWhateverOrderAnswersCome) {
  std::vector<std::vector<Ids>> of_order;
  for (const bool turned : {false, true}) {
    Played episode("grouped_results");
    const EpisodeRequest one = episode.Ask({User(turned ? "y" : "x")});
    const EpisodeRequest two = episode.Ask({User(turned ? "x" : "y")});
    episode.Answer(turned ? two : one, "first", Said("first"));
    episode.Answer(turned ? one : two, "second", Said("second"));
    of_order.emplace_back();
    for (const EpisodeSequence& sequence : episode->Sequences()) of_order.back().push_back(sequence.ids);
  }
  EXPECT_EQ(of_order[0], of_order[1]);
}

// Though of the two the second may have the smaller ids.
TEST(Episode, HasInTheFirstSequenceWhatTheOthersGoOnFromAndInTheLastWhatWasAskedForLast) {
  for (const bool turned : {false, true}) {
    Played episode("grouped_results");
    const EpisodeRequest first = episode.Ask({User("plan")});
    const Ids plan = episode.Answer(first, "a, b", Said("a, b"));
    const EpisodeRequest a = episode.Ask({User("plan"), Said("a, b"), User(turned ? "do b" : "do a")});
    const Ids did_a = episode.Answer(a, "done", Said("done"));
    const EpisodeRequest b = episode.Ask({User("plan"), Said("a, b"), User(turned ? "do a" : "do b")});
    const Ids did_b = episode.Answer(b, "it is", Said("it is"));
    const auto sequences = episode->Sequences();
    ASSERT_EQ(sequences.size(), 2);
    EXPECT_EQ(sequences[0].last_turn, a.turn);
    EXPECT_EQ(Actions(sequences[0]), plan.size() + did_a.size());
    EXPECT_EQ(sequences[1].last_turn, b.turn);
    EXPECT_EQ(Actions(sequences[1]), did_b.size());
  }
}

TEST(Episode, EndsWithTheSameOfSeveralThatWereAskedForSideBySideWhicheverCameFirst) {
  std::vector<Ids> last;
  for (const bool turned : {false, true}) {
    Played episode("grouped_results");
    episode.Answer(episode.Ask({User("z, which is asked first")}), "first", Said("first"));
    const EpisodeRequest one = episode.Ask({User(turned ? "y" : "x")});
    const EpisodeRequest two = episode.Ask({User(turned ? "x" : "y")});
    episode.Answer(one, "done", Said("done"));
    episode.Answer(two, "done", Said("done"));
    ASSERT_EQ(episode->Sequences().size(), 3);
    last.push_back(episode->Sequences().back().ids);
  }
  EXPECT_EQ(last[0], last[1]);
}

TEST(Episode, GoesBackToWhereAClientDroppedTurns) {
  Played episode("grouped_results");
  const EpisodeRequest first = episode.Ask({User("a")});
  const Ids drawn = episode.Answer(first, "one", Said("one"));
  const EpisodeRequest second = episode.Ask({User("a"), Said("one"), User("b")});
  episode.Answer(second, "two", Said("two"));
  const EpisodeRequest back = episode.Ask({User("a"), Said("one"), User("c")});
  EXPECT_THAT(back.prompt, BeginsWith(Together(first.prompt, drawn)));
  const EpisodeRequest compacted = episode.Ask({User("the story so far"), Said("two"), User("c")});
  EXPECT_EQ(compacted.prompt, episode.Encoded(episode.Text(compacted.prompt))) << "it stands behind other messages";
}

TEST(Episode, CountsEqualRequestsAndGoesOnFromTheOneWhoseAnswerComesAgain) {
  Played episode("grouped_results");
  std::vector<int64_t> repeats;
  std::vector<Ids> drawn;
  for (const char* text : {"heads", "tails", "heads"}) {
    const EpisodeRequest request = episode.Ask({User("toss")});
    repeats.push_back(request.repeats);
    drawn.push_back(Together(request.prompt, episode.Answer(request, text, Said(text))));
  }
  EXPECT_THAT(repeats, ElementsAre(0, 1, 2));
  EXPECT_THAT(episode.Ask({User("toss"), Said("tails"), User("again")}).prompt, BeginsWith(drawn[1]));
  EXPECT_EQ(episode->Sequences().size(), 3) << "each was drawn";
}

TEST(Episode, LeavesNothingOfRequestsThatWereNotAnswered) {
  Played episode("grouped_results");
  const EpisodeRequest first = episode.Ask({User("a")});
  episode.Answer(first, "one", Said("one"));
  episode.Ask({User("a"), Said("one"), User("b")});
  const auto sequences = episode->Sequences();
  ASSERT_EQ(sequences.size(), 1);
  EXPECT_EQ(sequences[0].last_turn, first.turn);
}

TEST(Episode, HoldsNothingOfPromptsThatGetNoAnswer) {
  Played episode("grouped_results");
  const int64_t before = AllocatedBytes();
  for (int i = 0; i < 20; ++i) episode->Unanswered(episode.Ask({User(absl::StrCat(i, std::string(10'000, 'x')))}).turn);
  EXPECT_LT(AllocatedBytes() - before, 100'000);
}

TEST(Episode, BeginsABranchWhereMoreAnswersThanAFewCannotBeGoneOnFrom) {
  Played episode("keeps_thoughts");
  Messages messages = {User("why?")};
  const EpisodeRequest first = episode.Ask(messages);
  const Ids drawn = episode.Answer(first, "thus\n</think>\n\nso", Thought("thus", "so"));
  messages.push_back(Thought("thus", "so"));
  const auto goes_on = BeginsWith(Together(first.prompt, drawn));
  for (int turn = 0; turn < 16; ++turn) {
    messages.push_back(User("go on"));
    const EpisodeRequest request = episode.Ask(messages);
    EXPECT_THAT(request.prompt, goes_on);
    messages.push_back(Thought("since it", ""));
    episode.Answer(request, "since it", messages.back());  // has ended within its thought
  }
  messages.push_back(User("go on"));
  EXPECT_THAT(episode.Ask(messages).prompt, testing::Not(goes_on));
}

TEST(Episode, BeginsABranchWhereTheSystemPromptTellsAnotherTime) {
  Played episode("dated");
  const auto asked = [&](const char* time, Messages rest) {
    rest.insert(rest.begin(), MakeChatMessage("system", time));
    return episode.Ask(rest);
  };
  const EpisodeRequest first = asked("12:00", {User("hi")});
  EXPECT_THAT(episode.Text(first.prompt), HasSubstr("Today: 02 Jan 2026"));
  const Ids drawn = episode.Answer(first, "hello", Said("hello"));
  EXPECT_THAT(asked("12:00", {User("hi"), Said("hello"), User("bye")}).prompt,
              BeginsWith(Together(first.prompt, drawn)));
  const EpisodeRequest later = asked("12:01", {User("hi"), Said("hello"), User("bye")});
  EXPECT_EQ(later.prompt, episode.Encoded(episode.Text(later.prompt)));
}

TEST(Episode, SaysWhyATemplateRefusesARequestAndGoesOn) {
  Played episode("call_ids");
  const Messages asked = {User("add"), Message(R"({"role": "assistant", "tool_calls": [{"id": "1", "name": "f"}]})")};
  const auto refused = episode->Begin(asked, nlohmann::ordered_json::object());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("ids of calls have 9 characters"));
  const EpisodeRequest first = episode.Ask({User("add")});
  const Ids drawn = episode.Answer(first, "3", Said("3"));
  EXPECT_THAT(episode.Ask({User("add"), Said("3"), User("more")}).prompt, BeginsWith(Together(first.prompt, drawn)));
}

}  // namespace
}  // namespace quartet
