// The rollout's answers in, what clients read out.

#include "core/openai/openai_response.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/openai/testing/chat_models.h"
#include "core/openai/testing/generated_answers.h"
#include "core/openai/testing/openai_requests.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::vector<Token> kCatSat = {{2, -0.5f, {}}, {3, -1.5f, {}}, {0, -0.25f, {}}};

TEST(OpenAiAnswer, IsWhole) {
  OpenAiAnswer answer(Completion({{"n", 2}}), Model(), Options());
  // They come in the order in which they end.
  answer.Take(SequenceReply(0, 1, {0, 10}, {{4, -1, {}}, {5, -1, {}}}, GeneratedSequence::LENGTH));
  answer.Take(SequenceReply(0, 0, {0, 10}, kCatSat, GeneratedSequence::STOP));
  EXPECT_EQ(json::parse(answer.Whole()), json::parse(R"({
    "id": "cmpl-abc", "object": "text_completion", "created": 1700000000, "model": "tiny",
    "system_fingerprint": "policy_version_3",
    "choices": [
      {"index": 0, "text": " cat sat", "logprobs": null, "finish_reason": "stop", "stop_reason": null},
      {"index": 1, "text": "sat!", "logprobs": null, "finish_reason": "length", "stop_reason": null}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}})"));
}

TEST(OpenAiAnswer, TellsOfAPromptsTokensByTheirIds) {
  GenerateReply reply = SequenceReply(0, 0, {0, 2, 3}, {{4, -1, {}}}, GeneratedSequence::LENGTH);
  GeneratedSequence& sequence = *reply.mutable_sequence();
  for (const float log_prob : {-2.0f, -0.5f}) sequence.add_prompt_log_probs(log_prob);
  Describe({{1, -0.25f}, {2, -2}}, sequence.add_prompt_alternatives());
  Describe({{3, -0.5f}, {1, -4}}, sequence.add_prompt_alternatives());
  const json first = {{"1", {{"logprob", -0.25}, {"rank", 1}, {"decoded_token", " the"}}},
                      {"2", {{"logprob", -2}, {"rank", nullptr}, {"decoded_token", " cat"}}}};
  const json second = {{"3", {{"logprob", -0.5}, {"rank", 1}, {"decoded_token", " sat"}}}};
  const json prompt = {{"prompt", json::array({0, 2, 3})}, {"prompt_logprobs", 1}};
  OpenAiAnswer completion(Completion(prompt), Model(), Options());
  completion.Take(reply);
  const json told = json::parse(completion.Whole());
  EXPECT_EQ(told.at("choices").at(0).at("prompt_logprobs"), json::array({nullptr, first, second}));
  EXPECT_FALSE(told.contains("prompt_logprobs"));
  OpenAiAnswer none(Completion({}), Model(), Options());
  none.Take(reply);
  EXPECT_FALSE(json::parse(none.Whole()).at("choices").at(0).contains("prompt_logprobs"));
  // A chat has them beside its choices.
  OpenAiAnswer chat(Chat({{"prompt_logprobs", 0}}), Model(), Options());
  reply = SequenceReply(0, 0, {7, 8, 10, 9}, {{4, -1, {}}}, GeneratedSequence::LENGTH);
  for (int i = 0; i < 3; ++i) reply.mutable_sequence()->add_prompt_log_probs(-1);
  chat.Take(reply);
  const json list = json::parse(chat.Whole()).at("prompt_logprobs");
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[2], json({{"10", {{"logprob", -1}, {"rank", nullptr}, {"decoded_token", "hi"}}}}));
}

TEST(OpenAiAnswer, TellsTheUsageSoFarInEachEventWhereAsked) {
  const json options = {{"include_usage", true}, {"continuous_usage_stats", true}};
  OpenAiAnswer answer(Completion({{"stream", true}, {"stream_options", options}}), Model(), Options());
  for (int i = 0; i < 2; ++i) {
    const json event = EventsOf(answer.Take(TokensReply(0, 0, kCatSat[i]))).at(0);
    EXPECT_EQ(event.at("usage"), json({{"prompt_tokens", 2}, {"completion_tokens", i + 1}, {"total_tokens", i + 3}}));
  }
}

TEST(OpenAiAnswer, WeighsTheTextAndTheLogProbabilitiesThatItTells) {
  const auto weight = [](bool chat, const json& more) {
    OpenAiAnswer answer(chat ? Chat(more) : Completion(more), Model(), Options());
    answer.Take(SequenceReply(0, 0, {0, 10}, {{4, -1, {{4, -1}, {5, -2}}}, {5, -1, {{5, -1}, {4, -2}}}},
                              GeneratedSequence::LENGTH));
    return std::pair(answer.json_bytes(), answer.Whole());
  };
  const auto [plain, body] = weight(false, json::object());
  const std::string text = json::parse(body).at("choices").at(0).at("text");
  EXPECT_EQ(plain, text.size());
  for (const bool chat : {false, true}) {
    const json more = chat ? json{{"logprobs", true}, {"top_logprobs", 2}} : json{{"logprobs", 2}};
    const auto [bytes, written] = weight(chat, more);
    EXPECT_EQ(bytes, 2 * 3 * 300 + text.size());
    EXPECT_LT(written.size(), bytes);
  }
}

TEST(OpenAiAnswer, TellsTheVersionsThatMadeWhatItTells) {
  const auto fingerprint = [](const json& body) { return body.at("system_fingerprint").get<std::string>(); };
  GenerateReply ended = SequenceReply(0, 0, {0, 10}, {{4, -1, {}}, {5, -1, {}}}, GeneratedSequence::LENGTH);
  for (const uint64_t version : {4, 6}) ended.mutable_sequence()->add_policy_versions(version);
  // Where weights were committed between its beginning and its first token, between two tokens.
  OpenAiAnswer whole(Completion({}), Model(), Options());
  whole.Take(ended);
  EXPECT_EQ(fingerprint(json::parse(whole.Whole())), "policy_version_4_to_6");
  OpenAiAnswer stream(Completion({{"stream", true}}), Model(), Options());
  GenerateReply first = TokensReply(0, 0, {4, -1, {}});
  first.mutable_tokens()->set_policy_version(4);
  EXPECT_EQ(fingerprint(EventsOf(stream.Take(first)).at(0)), "policy_version_4");
  GenerateReply second = TokensReply(0, 0, {5, -1, {}});
  second.mutable_tokens()->set_policy_version(6);
  EXPECT_EQ(fingerprint(EventsOf(stream.Take(second)).at(0)), "policy_version_4_to_6");
  // An echo alone.
  OpenAiAnswer echo(Completion({{"echo", true}, {"max_tokens", 0}, {"logprobs", 0}}), Model(), Options());
  GenerateReply prompt = SequenceReply(0, 0, {10}, {}, GeneratedSequence::LENGTH);
  prompt.mutable_sequence()->set_prompt_policy_version(5);
  echo.Take(prompt);
  EXPECT_EQ(fingerprint(json::parse(echo.Whole())), "policy_version_5");
}

TEST(OpenAiAnswer, IsWholeAsAChatMessage) {
  OpenAiAnswer answer(Chat({{"stop", "sat"}}), Model(), Options());
  answer.Take(SequenceReply(0, 0, {7, 8, 10, 9}, {{2, -1, {}}, {3, -1, {}}}, GeneratedSequence::STOP, "sat"));
  EXPECT_EQ(json::parse(answer.Whole()), json::parse(R"({
    "id": "chatcmpl-abc", "object": "chat.completion", "created": 1700000000, "model": "tiny",
    "system_fingerprint": "policy_version_3",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": " cat ", "refusal": null},
                 "logprobs": null, "finish_reason": "stop", "stop_reason": "sat"}],
    "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}})"));
}

TEST(OpenAiAnswer, HasWhatEndedItWhereThatIsAskedFor) {
  const json ask = {{"stop", "sat"}, {"stop_token_ids", {8}}, {"include_stop_str_in_output", true}};
  for (const bool stream : {false, true}) {
    const auto text_of = [&](const std::vector<Token>& tokens, const std::string& stop_string) {
      json body = ask;
      body["stream"] = stream;
      OpenAiAnswer answer(Completion(body), Model(), Options());
      std::string events;
      for (const Token& token : tokens) {
        if (stream) events += answer.Take(TokensReply(0, 0, token));
      }
      events += answer.Take(SequenceReply(0, 0, {10}, tokens, GeneratedSequence::STOP, stop_string));
      if (!stream) return json::parse(answer.Whole()).at("choices").at(0).at("text").get<std::string>();
      std::string text;
      for (const json& event : EventsOf(events)) text += event.at("choices").at(0).at("text").get<std::string>();
      return text;
    };
    EXPECT_EQ(text_of({{2, -1, {}}, {4, -1, {}}, {5, -1, {}}}, "sat"), " catsat");
    EXPECT_EQ(text_of({{2, -1, {}}, {8, -1, {}}}, ""), " cat:");
  }
}

TEST(OpenAiAnswer, SaysWhatEndedIt) {
  const auto choice = [](const json& body, const std::vector<Token>& tokens, GeneratedSequence::FinishReason reason) {
    OpenAiAnswer answer(Completion(body), Model(), Options());
    answer.Take(SequenceReply(0, 0, {10}, tokens, reason));
    return json::parse(answer.Whole()).at("choices").at(0);
  };
  const json by_token = choice({{"stop_token_ids", {8}}}, {{2, -1, {}}, {8, -1, {}}}, GeneratedSequence::STOP);
  EXPECT_EQ(by_token.at("text"), " cat");
  EXPECT_EQ(by_token.at("finish_reason"), "stop");
  EXPECT_EQ(by_token.at("stop_reason"), 8);
  EXPECT_EQ(choice(json::object(), {{2, -1, {}}, {0, -1, {}}}, GeneratedSequence::STOP).at("stop_reason"), nullptr);
  const json aborted = choice(json::object(), {}, GeneratedSequence::ABORTED);
  EXPECT_EQ(aborted.at("finish_reason"), "abort");
  EXPECT_EQ(aborted.at("text"), "");
}

const std::vector<Token> kWithAlternatives = {{2, -0.5f, {{2, -0.5f}, {1, -2.0f}}},
                                              {11, -INFINITY, {{6, -0.125f}, {0, -3.0f}}}};

TEST(OpenAiAnswer, BeginsWithThePromptWhereAsked) {
  const json ask = {{"prompt", {{0, 10, 2, 6}, {10, 9}}}, {"echo", true}, {"max_tokens", 1}};
  json with_logprobs = ask;
  with_logprobs["logprobs"] = 2;
  const auto answer_to = [](const json& body) {
    OpenAiAnswer answer(Completion(body), Model(), Options());
    GenerateReply first =
        SequenceReply(0, 0, {0, 10, 2, 6}, {{3, -1.5f, {{1, -0.5f}, {3, -1.5f}}}}, GeneratedSequence::LENGTH);
    GeneratedSequence& sequence = *first.mutable_sequence();
    for (const float log_prob : {-4.0f, -0.75f, -INFINITY}) sequence.add_prompt_log_probs(log_prob);
    Describe({{2, -0.75f}, {1, -2.0f}}, sequence.add_prompt_alternatives());
    Describe({{2, -0.75f}, {1, -2.0f}}, sequence.add_prompt_alternatives());
    Describe({{5, -0.125f}, {4, -3.0f}}, sequence.add_prompt_alternatives());
    answer.Take(first);
    answer.Take(SequenceReply(1, 0, {10, 9}, {{8, -1, {}}}, GeneratedSequence::LENGTH));
    return json::parse(answer.Whole()).at("choices");
  };
  const json plain = answer_to(ask);
  EXPECT_EQ(plain.at(0).at("text"), "hi cat\n sat");
  EXPECT_EQ(plain.at(0).at("logprobs"), nullptr);
  EXPECT_EQ(plain.at(1).at("text"), "hi;:");
  // The first token has nothing before it; since it is a special one, it has a name and no text.
  const json told = answer_to(with_logprobs).at(0);
  EXPECT_EQ(told.at("text"), "hi cat\n sat");
  EXPECT_EQ(told.at("logprobs"), json::parse(R"({
    "text_offset": [0, 0, 2, 6, 7], "token_logprobs": [null, -4.0, -0.75, -9999.0, -1.5],
    "tokens": ["<end>", "hi", " cat", "\n", " sat"],
    "top_logprobs": [null, {" cat": -0.75, " the": -2.0, "hi": -4.0}, {" cat": -0.75, " the": -2.0},
                     {"t!": -0.125, "sa": -3.0, "\n": -9999.0}, {" the": -0.5, " sat": -1.5}]})"));
}

TEST(OpenAiAnswer, CanBeThePromptAlone) {
  OpenAiAnswer answer(Completion({{"prompt", {{10, 2}}}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 0}}), Model(),
                      Options());
  GenerateReply reply = SequenceReply(0, 0, {10, 2}, {}, GeneratedSequence::LENGTH);
  reply.mutable_sequence()->add_prompt_log_probs(-0.25f);
  answer.Take(reply);
  const json whole = json::parse(answer.Whole());
  EXPECT_EQ(whole.at("choices").at(0).at("text"), "hi cat");
  EXPECT_EQ(whole.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(whole.at("choices").at(0).at("logprobs"), json::parse(R"({
    "text_offset": [0, 2], "token_logprobs": [null, -0.25], "tokens": ["hi", " cat"],
    "top_logprobs": [null, {" cat": -0.25}]})"));
  EXPECT_EQ(whole.at("usage"), (json{{"prompt_tokens", 2}, {"completion_tokens", 0}, {"total_tokens", 2}}));
}

TEST(OpenAiAnswer, HasLogprobsOfCompletions) {
  OpenAiAnswer answer(Completion({{"logprobs", 2}}), Model(), Options());
  answer.Take(SequenceReply(0, 0, {0, 10}, kWithAlternatives, GeneratedSequence::LENGTH));
  // A character's first byte is no text yet, and the chosen token is always among those told.
  EXPECT_EQ(json::parse(answer.Whole()).at("choices").at(0).at("logprobs"), json::parse(R"({
    "text_offset": [0, 4], "token_logprobs": [-0.5, -9999.0], "tokens": [" cat", "�"],
    "top_logprobs": [{" cat": -0.5, " the": -2.0}, {"\n": -0.125, "<end>": -3.0, "�": -9999.0}]})"));
}

TEST(OpenAiAnswer, SaysWhereTheTokensOfACompletionAreInItsText) {
  const json ask = {{"prompt", {{0, 1, 0}}}, {"echo", true}, {"logprobs", 0}, {"ignore_eos", true}, {"stop", "t!"}};
  OpenAiAnswer answer(Completion(ask), Model(), {});
  answer.Take(SequenceReply(0, 0, {0, 1, 0}, {{2, -1, {}}, {0, -1, {}}, {0, -1, {}}, {3, -1, {}}, {5, -1, {}}},
                            GeneratedSequence::STOP, "t!"));
  const json choice = json::parse(answer.Whole()).at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "the cat sat");
  const json& told = choice.at("logprobs");
  EXPECT_EQ(told.at("tokens"), json({"<end>", " the", "<end>", " cat", "<end>", "<end>", " sat", "t!"}));
  EXPECT_EQ(told.at("text_offset"), json({0, 0, 3, 3, 7, 7, 7, 11}));
}

TEST(OpenAiAnswer, HasLogprobsOfChats) {
  OpenAiAnswer answer(Chat({{"logprobs", true}, {"top_logprobs", 2}}), Model(), Options());
  answer.Take(SequenceReply(0, 0, {7, 8, 10, 9}, kWithAlternatives, GeneratedSequence::LENGTH));
  EXPECT_EQ(json::parse(answer.Whole()).at("choices").at(0).at("logprobs"), json::parse(R"({
    "refusal": null,
    "content": [
      {"token": " cat", "logprob": -0.5, "bytes": [32, 99, 97, 116], "top_logprobs": [
        {"token": " cat", "logprob": -0.5, "bytes": [32, 99, 97, 116]},
        {"token": " the", "logprob": -2.0, "bytes": [32, 116, 104, 101]}]},
      {"token": "�", "logprob": -9999.0, "bytes": null, "top_logprobs": [
        {"token": "\n", "logprob": -0.125, "bytes": [10]},
        {"token": "<end>", "logprob": -3.0, "bytes": [60, 101, 110, 100, 62]}]}]})"));
}

TEST(OpenAiAnswer, IsStreamed) {
  OpenAiAnswer answer(Completion({{"n", 2}, {"stream", true}, {"stop", "t!"}}), Model(), Options());
  std::string text = answer.Begin();
  EXPECT_EQ(text, "");
  text += answer.Take(TokensReply(0, 0, kCatSat[0]));
  text += answer.Take(TokensReply(0, 1, {4, -1, {}}));
  text += answer.Take(TokensReply(0, 1, {5, -1, {}}));  // held back
  text += answer.Take(SequenceReply(0, 1, {0, 10}, {{4, -1, {}}, {5, -1, {}}}, GeneratedSequence::STOP, "t!"));
  text += answer.Take(TokensReply(0, 0, kCatSat[1]));  // a "t" at the end may begin "t!"
  text += answer.Take(TokensReply(0, 0, kCatSat[2]));
  text += answer.Take(SequenceReply(0, 0, {0, 10}, kCatSat, GeneratedSequence::LENGTH));
  text += answer.End();
  const std::vector<json> events = EventsOf(text);
  std::vector<std::string> told;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i].at("object"), "text_completion");
    EXPECT_EQ(events[i].at("id"), "cmpl-abc");
    EXPECT_FALSE(events[i].contains("usage"));
    const json& choice = events[i].at("choices").at(0);
    told.push_back(absl::StrCat(choice.at("index").get<int>(), choice.at("text").get<std::string>(), "|",
                                choice.at("finish_reason").dump()));
  }
  EXPECT_THAT(told, ElementsAre("0 ca|null", "1sa|null", "1|\"stop\"", "0t sa|null", "0t|\"length\""));
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST(OpenAiAnswer, IsStreamedAsAChatWithUsage) {
  OpenAiAnswer answer(Chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"logprobs", true}}),
                      Model(), Options());
  std::string text = answer.Begin();
  for (const Token& token : kCatSat) text += answer.Take(TokensReply(0, 0, token));
  text += answer.Take(SequenceReply(0, 0, {7, 8, 10, 9}, kCatSat, GeneratedSequence::STOP));
  text += answer.End();
  const std::vector<json> events = EventsOf(text);
  ASSERT_THAT(events, SizeIs(7));
  EXPECT_EQ(events[0].at("object"), "chat.completion.chunk");
  EXPECT_EQ(events[0].at("choices").at(0).at("delta"), json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(events[1].at("choices").at(0).at("delta"), json::parse(R"({"content": " cat"})"));
  EXPECT_EQ(events[1].at("choices").at(0).at("logprobs").at("content").at(0).at("logprob"), -0.5);
  EXPECT_EQ(events[2].at("choices").at(0).at("delta").at("content"), " sat");
  // The token that ended it: no text, but a log-probability.
  EXPECT_EQ(events[3].at("choices").at(0).at("logprobs").at("content").at(0).at("token"), "<end>");
  EXPECT_EQ(events[4].at("choices").at(0).at("delta"), json::object());
  EXPECT_EQ(events[4].at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(events[4].at("usage"), nullptr);
  EXPECT_EQ(events[5].at("choices"), json::array());
  EXPECT_EQ(events[5].at("usage"), json::parse(R"({"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7})"));
}

TEST(OpenAiAnswer, ToldInPiecesOrWholeIsTheSameText) {
  const std::vector<Token> tokens = {{11, -1, {}}, {12, -1, {}}, {2, -1, {}}, {6, -1, {}},
                                     {3, -1, {}},  {5, -1, {}},  {4, -1, {}}};
  const json stop = {"sat!!", "\n the"};
  OpenAiAnswer whole(Completion({{"stop", stop}}), Model(), Options());
  whole.Take(SequenceReply(0, 0, {10}, tokens, GeneratedSequence::LENGTH));
  OpenAiAnswer stream(Completion({{"stop", stop}, {"stream", true}}), Model(), Options());
  std::string text;
  for (const Token& token : tokens) text += stream.Take(TokensReply(0, 0, token));
  text += stream.Take(SequenceReply(0, 0, {10}, tokens, GeneratedSequence::LENGTH));
  std::string told;
  for (const json& event : EventsOf(text)) told += event.at("choices").at(0).at("text").get<std::string>();
  EXPECT_EQ(json::parse(whole.Whole()).at("choices").at(0).at("text"), told);
}

TEST(OpenAiAnswer, BeginsWithThePromptInAStreamToo) {
  const std::vector<std::vector<int32_t>> prompts = {{0, 10, 2, 6}, {10}};
  const std::vector<Token> tokens = {{3, -1.5f, {{1, -0.5f}}}, {2, -2.5f, {{2, -2.5f}}}};
  for (const int count : {0, 2}) {
    json ask = {{"prompt", prompts}, {"echo", true}, {"max_tokens", count}, {"logprobs", 1}, {"n", count + 1}};
    OpenAiAnswer whole(Completion(ask), Model(), Options());
    ask["stream"] = true;
    OpenAiAnswer stream(Completion(ask), Model(), Options());
    std::string text = stream.Begin();
    const std::vector<Token> answer(tokens.begin(), tokens.begin() + count);
    const auto tell_prompt = [&](size_t prompt, auto* message) {
      for (size_t i = 1; i < prompts[prompt].size(); ++i) {
        message->add_prompt_log_probs(-0.25f * static_cast<float>(i));
        Describe({{2, -0.125f}}, message->add_prompt_alternatives());
      }
    };
    for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
      for (int sample = 0; sample <= count; ++sample) {
        for (const Token& token : answer) {
          GenerateReply reply = TokensReply(prompt, sample, token);
          if (&token == answer.data()) tell_prompt(prompt, reply.mutable_tokens());
          text += stream.Take(reply);
        }
        GenerateReply end = SequenceReply(prompt, sample, prompts[prompt], answer, GeneratedSequence::LENGTH);
        tell_prompt(prompt, end.mutable_sequence());
        whole.Take(end);
        text += stream.Take(end);
      }
    }
    // The parts of a choice, laid end to end.
    std::map<int, std::string> texts;
    std::map<int, json> logprobs;
    for (const json& event : EventsOf(text)) {
      const json& choice = event.at("choices").at(0);
      const int index = choice.at("index");
      if (!texts.contains(index)) {
        EXPECT_TRUE(absl::StartsWith(choice.at("text").get<std::string>(), index <= count ? "hi cat\n" : "hi"));
      }
      texts[index] += choice.at("text");
      for (const auto& [name, list] : choice.at("logprobs").items()) {
        for (const json& of_token : list) logprobs[index][name].push_back(of_token);
      }
    }
    const json choices = json::parse(whole.Whole()).at("choices");
    ASSERT_EQ(texts.size(), choices.size());
    for (const json& choice : choices) {
      EXPECT_EQ(texts[choice.at("index")], choice.at("text"));
      EXPECT_EQ(logprobs[choice.at("index")], choice.at("logprobs"));
    }
  }
}

// A chat with a tool, of a model of that family.
struct ToolChat {
  explicit ToolChat(const std::string& family, const std::vector<std::string>& marks = {}, bool special = true)
      : tokenizer(LoadChatModel(family, marks, special)), model(ServedChatModel(*tokenizer)) {}

  OpenAiAnswer Answer(json more, bool keeps_messages = false) const {
    more["messages"] = json::array({{{"role", "user"}, {"content", "hi"}}});
    more["tools"] = json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
    return OpenAiAnswer(ReadOpenAiRequest(true, more.dump(), model, kSeed).value(), model,
                        {.id = "abc", .end_token_ids = {2}, .keeps_messages = keeps_messages});
  }
  std::vector<Token> Tokens(const std::string& text) const {
    std::vector<Token> tokens;
    const std::vector<int32_t> ids = tokenizer->Encode(text, false).value();
    for (const int32_t id : ids) tokens.push_back({id, -1, {}});
    tokens.push_back({2, -1, {}});
    return tokens;
  }
  json Choice(const std::string& text, GeneratedSequence::FinishReason reason,
              const json& more = json::object()) const {
    OpenAiAnswer answer = Answer(more);
    answer.Take(SequenceReply(0, 0, {1}, Tokens(text), reason));
    return json::parse(answer.Whole()).at("choices").at(0);
  }

  std::unique_ptr<Tokenizer> tokenizer;
  ServedModel model;
};

constexpr char kTwoCalls[] =
    "<think>\nTwo of them.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.5, "
    "\"a\": \"ä\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

TEST(OpenAiAnswer, HasCallsAndThoughts) {
  const ToolChat chat("qwen");
  const json choice = chat.Choice(kTwoCalls, GeneratedSequence::STOP);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  const json& message = choice.at("message");
  EXPECT_EQ(message.at("content"), "Let me see.");
  EXPECT_EQ(message.at("reasoning_content"), "Two of them.");
  ASSERT_EQ(message.at("tool_calls").size(), 2u);
  for (const json& call : message.at("tool_calls")) {
    EXPECT_EQ(call.at("type"), "function");
    EXPECT_TRUE(IsCallId(call.at("id").get<std::string>()));
  }
  EXPECT_EQ(message.at("tool_calls")[0].at("function"), json({{"name", "f"}, {"arguments", R"({"b":1.5,"a":"ä"})"}}));
  EXPECT_EQ(message.at("tool_calls")[1].at("function"), json({{"name", "g"}, {"arguments", "{}"}}));
  // It can be sent back as it is.
  json again = {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}, message})}};
  EXPECT_TRUE(ReadOpenAiRequest(true, again.dump(), chat.model, kSeed).ok());

  const json call = chat.Choice("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", GeneratedSequence::STOP);
  EXPECT_EQ(call.at("message").at("content"), nullptr);
  EXPECT_FALSE(call.at("message").contains("reasoning_content"));
  const json text = chat.Choice("No.", GeneratedSequence::STOP);
  EXPECT_EQ(text.at("finish_reason"), "stop");
  EXPECT_EQ(text.at("message"), json({{"role", "assistant"}, {"content", "No."}, {"refusal", nullptr}}));
  const json cut = chat.Choice(kTwoCalls, GeneratedSequence::LENGTH);
  EXPECT_EQ(cut.at("finish_reason"), "length");
  EXPECT_EQ(cut.at("message").at("tool_calls").size(), 2u);
  const json none = chat.Choice("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", GeneratedSequence::STOP,
                                {{"tool_choice", "none"}});
  EXPECT_EQ(none.at("finish_reason"), "stop");
  EXPECT_EQ(none.at("message").at("content"), "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
}

// As clients put them together: texts end to end, calls by their index.
json MessageOf(const std::vector<json>& events) {
  json message = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", json::array()}};
  for (const json& event : events) {
    if (event == "[DONE]") continue;
    const json& delta = event.at("choices").at(0).at("delta");
    for (const char* name : {"content", "reasoning_content"}) {
      if (delta.contains(name)) message[name] = message[name].get<std::string>() + delta.at(name).get<std::string>();
    }
    for (json call : delta.value("tool_calls", json::array())) {
      EXPECT_EQ(call.at("index"), message["tool_calls"].size());
      call.erase("index");
      message["tool_calls"].push_back(call);
    }
    message["finish_reason"] = event.at("choices").at(0).at("finish_reason");
  }
  return message;
}

TEST(OpenAiAnswer, StreamsACallAsOnePiece) {
  const ToolChat chat("qwen");
  OpenAiAnswer answer = chat.Answer({{"stream", true}, {"logprobs", true}}, /*keeps_messages=*/true);
  std::string text = answer.Begin();
  const std::vector<Token> tokens = chat.Tokens(kTwoCalls);
  for (const Token& token : tokens) text += answer.Take(TokensReply(0, 0, token));
  text += answer.Take(SequenceReply(0, 0, {1}, tokens, GeneratedSequence::STOP)) + answer.End();
  const std::vector<json> events = EventsOf(text);
  json whole = chat.Choice(kTwoCalls, GeneratedSequence::STOP).at("message");
  const json streamed = MessageOf(events);
  for (const char* name : {"content", "reasoning_content", "tool_calls"}) EXPECT_EQ(streamed.at(name), whole.at(name));
  EXPECT_EQ(streamed.at("finish_reason"), "tool_calls");
  EXPECT_EQ(json(answer.Message(0)), whole);
  // Thoughts and texts come as they grow; each token's log-probability with it, whatever is held back.
  int thoughts = 0, told = 0;
  for (const json& event : events) {
    if (event == "[DONE]") continue;
    const json& choice = event.at("choices").at(0);
    thoughts += static_cast<int>(choice.at("delta").contains("reasoning_content"));
    if (!choice.at("logprobs").is_null()) told += static_cast<int>(choice.at("logprobs").at("content").size());
  }
  EXPECT_GT(thoughts, 3);
  EXPECT_EQ(told, tokens.size());
}

TEST(OpenAiAnswer, ReadsMarksThatAreSpecialTokensByTheirIds) {
  const std::string calls = R"( [{"name": "f", "arguments": {"a": 1}}])";
  const ToolChat mistral("mistral", {"[TOOL_CALLS]"});
  for (const bool stream : {false, true}) {
    const auto message_of = [&](const std::string& text, const json& more = json::object()) {
      if (!stream) return mistral.Choice(text, GeneratedSequence::STOP, more).at("message");
      json body = more;
      body["stream"] = true;
      OpenAiAnswer answer = mistral.Answer(body);
      std::string events;
      const std::vector<Token> tokens = mistral.Tokens(text);
      for (const Token& token : tokens) events += answer.Take(TokensReply(0, 0, token));
      return MessageOf(EventsOf(events + answer.Take(SequenceReply(0, 0, {1}, tokens, GeneratedSequence::STOP))));
    };
    const json called = message_of("Hm." + ("[TOOL_CALLS]" + calls));
    EXPECT_EQ(called.at("content"), "Hm.");
    EXPECT_EQ(called.at("tool_calls").at(0).at("function").at("arguments"), R"({"a":1})");
    // A stop string may begin before it.
    EXPECT_EQ(message_of("Hm." + ("[TOOL_CALLS]" + calls), {{"stop", {".]"}}}).at("tool_calls").size(), 1u);
    EXPECT_EQ(message_of("[TOOL_CALLS] none").at("content"), "[TOOL_CALLS] none");
    // Calls that are not asked for have their text alone.
    EXPECT_EQ(message_of("[TOOL_CALLS] none", {{"tool_choice", "none"}}).at("content"), " none");
  }
  const json llama = ToolChat("llama3", {"<|python_tag|>"})
                         .Choice(R"(<|python_tag|>{"name": "f", "parameters": {}})", GeneratedSequence::STOP);
  EXPECT_EQ(llama.at("message").at("tool_calls").at(0).at("function").at("name"), "f");
  for (const bool special : {false, true}) {
    const json qwen = ToolChat("qwen", {"<think>", "</think>", "<tool_call>", "</tool_call>"}, special)
                          .Choice(kTwoCalls, GeneratedSequence::STOP);
    EXPECT_EQ(qwen.at("message").at("reasoning_content"), "Two of them.");
    EXPECT_EQ(qwen.at("message").at("tool_calls").size(), 2u);
  }
}

TEST(OpenAiAnswer, HasACallBehindACharacterThatWasNotFinished) {
  const ToolChat mistral("mistral", {"[TOOL_CALLS]"});
  std::vector<Token> tokens = mistral.Tokens("\xF0\x9F\x98\x80");
  ASSERT_GT(tokens.size(), 2u);
  tokens.resize(1);  // the character's first byte
  const std::vector<Token> call = mistral.Tokens(R"([TOOL_CALLS] [{"name": "f", "arguments": {}}])");
  tokens.insert(tokens.end(), call.begin(), call.end());
  OpenAiAnswer answer = mistral.Answer(json::object());
  answer.Take(SequenceReply(0, 0, {1}, tokens, GeneratedSequence::STOP));
  const json message = json::parse(answer.Whole()).at("choices").at(0).at("message");
  EXPECT_EQ(message.at("content"), "\xEF\xBF\xBD");
  EXPECT_EQ(message.at("tool_calls").size(), 1u);
}

TEST(OpenAiAnswer, WeighsCallsAndThoughtsToo) {
  const ToolChat chat("qwen");
  OpenAiAnswer answer = chat.Answer(json::object());
  answer.Take(SequenceReply(0, 0, {1}, chat.Tokens(kTwoCalls), GeneratedSequence::STOP));
  // The texts are 25 bytes.
  EXPECT_GT(answer.json_bytes(), 150);
}

TEST(OpenAiAnswer, AFailureEndsTheStream) {
  const std::vector<json> events = EventsOf(OpenAiAnswer::Failure(absl::UnavailableError("rank 1 is gone")));
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0], json::parse(R"({"error": {"message": "rank 1 is gone", "type": "service_unavailable_error",
                                                 "param": null, "code": null}})"));
  EXPECT_EQ(events[1], "[DONE]");
}

}  // namespace
}  // namespace quartet
