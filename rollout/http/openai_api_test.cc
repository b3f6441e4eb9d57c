// Requests in, what the rollout has to do out; its answers in, what clients read out. No sockets.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rollout/http/api_error.h"
#include "rollout/http/metrics_text.h"
#include "rollout/http/openai_request.h"
#include "rollout/http/openai_response.h"
#include "rollout/piece_tokenizer.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kSeed = 77;
constexpr char kNotNumbers[] = R"(["1", true, [], {}])";

const PieceTokenizer& Words() {
  static const auto* tokenizer =
      new PieceTokenizer({"<end>", " the", " cat", " sat", "sa", "t!", "\n", "user", ":", ";", "hi", "\xF0", "\x9F"});
  return *tokenizer;
}

const ServedModel& Model() {
  static const auto* model = new ServedModel{
      .name = "tiny", .tokenizer = &Words(), .vocab_size = 13, .max_model_len = 64, .max_sequences = 100};
  return *model;
}

absl::StatusOr<OpenAiRequest> Read(bool chat, const json& body) {
  return ReadOpenAiRequest(chat, body.dump(), Model(), kSeed);
}
OpenAiRequest Completion(json more) {
  more.emplace("prompt", "hi");
  return Read(false, more).value();
}
OpenAiRequest Chat(json more) {
  more.emplace("messages", json::array({{{"role", "user"}, {"content", "hi"}}}));
  return Read(true, more).value();
}
// The error object of a request with these parameters beside the prompt.
json ErrorOf(bool chat, json more) {
  if (chat) {
    more.emplace("messages", json::array({{{"role", "user"}, {"content", "hi"}}}));
  } else {
    more.emplace("prompt", "hi");
  }
  const absl::StatusOr<OpenAiRequest> request = Read(chat, more);
  if (request.ok()) return nullptr;
  return json::parse(ErrorBody(request.status())).at("error");
}
std::vector<int32_t> Ids(const Prompt& prompt) { return {prompt.ids().begin(), prompt.ids().end()}; }

TEST(OpenAiRequest, HasOpenAisDefaults) {
  const OpenAiRequest request = Completion(json::object());
  const SamplingParams& sampling = request.header.sampling();
  EXPECT_EQ(sampling.temperature(), 1);
  EXPECT_EQ(sampling.top_p(), 1);
  EXPECT_EQ(sampling.n_samples(), 1);
  EXPECT_EQ(sampling.max_new_tokens(), 16);
  EXPECT_EQ(sampling.seed(), kSeed);
  EXPECT_EQ(sampling.logprobs(), 0);
  EXPECT_FALSE(sampling.has_repetition_penalty());
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.logprobs);
  EXPECT_FALSE(request.header.stream_tokens());
  EXPECT_EQ(request.header.num_items(), 1);
  // A chat's answer may fill the context: "user:hi;" has four tokens.
  EXPECT_EQ(Chat(json::object()).header.sampling().max_new_tokens(), 60);
}

TEST(OpenAiRequest, NullIsAsGoodAsNothing) {
  const OpenAiRequest request = Completion({{"temperature", nullptr},
                                            {"max_tokens", nullptr},
                                            {"stop", nullptr},
                                            {"suffix", nullptr},
                                            {"whatever", nullptr}});
  EXPECT_EQ(request.header.sampling().temperature(), 1);
  EXPECT_EQ(request.header.sampling().max_new_tokens(), 16);
}

TEST(OpenAiRequest, TakesEverySamplingParameter) {
  for (const bool chat : {false, true}) {
    json body = {{"model", "tiny"},
                 {"temperature", 0.5},
                 {"top_p", 0.9},
                 {"top_k", 7},
                 {"min_p", 0.1},
                 {"n", 3},
                 {"max_tokens", 5},
                 {"min_tokens", 2},
                 {"seed", -1},
                 {"presence_penalty", 0.25},
                 {"frequency_penalty", -0.25},
                 {"repetition_penalty", 1.5},
                 {"logit_bias", {{"3", 2.5}, {"4", -100}}},
                 {"stop", {"a", "b"}},
                 {"stop_token_ids", {5}},
                 {"ignore_eos", true},
                 {"user", "someone"}};
    const OpenAiRequest request = chat ? Chat(body) : Completion(body);
    const SamplingParams& sampling = request.header.sampling();
    EXPECT_EQ(sampling.temperature(), 0.5f);
    EXPECT_EQ(sampling.top_p(), 0.9f);
    EXPECT_EQ(sampling.top_k(), 7);
    EXPECT_EQ(sampling.min_p(), 0.1f);
    EXPECT_EQ(sampling.n_samples(), 3);
    EXPECT_EQ(sampling.max_new_tokens(), 5);
    EXPECT_EQ(sampling.min_tokens(), 2);
    EXPECT_EQ(sampling.seed(), UINT64_MAX);
    EXPECT_EQ(sampling.presence_penalty(), 0.25f);
    EXPECT_EQ(sampling.frequency_penalty(), -0.25f);
    EXPECT_EQ(sampling.repetition_penalty(), 1.5f);
    EXPECT_EQ(sampling.logit_bias().at(3), 2.5f);
    EXPECT_EQ(sampling.logit_bias().at(4), -100);
    EXPECT_THAT(sampling.stop(), ElementsAre("a", "b"));
    EXPECT_THAT(sampling.stop_token_ids(), ElementsAre(5));
    EXPECT_TRUE(sampling.ignore_eos());
  }
  EXPECT_THAT(Completion({{"stop", "x"}}).header.sampling().stop(), ElementsAre("x"));
  EXPECT_EQ(Completion({{"seed", UINT64_MAX - 1}}).header.sampling().seed(), UINT64_MAX - 1);
  EXPECT_EQ(Chat({{"max_completion_tokens", 9}}).header.sampling().max_new_tokens(), 9);
}

TEST(OpenAiRequest, TakesPromptsAsTextAndAsIds) {
  const auto prompts = [](const json& prompt) {
    std::vector<std::vector<int32_t>> ids;
    const OpenAiRequest request = Read(false, {{"prompt", prompt}}).value();
    for (size_t i = 0; i < request.prompts.size(); ++i) {
      EXPECT_EQ(request.prompts[i].index(), i);
      ids.push_back(Ids(request.prompts[i]));
    }
    return ids;
  };
  using Prompts = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(prompts("hi cat"), (Prompts{{0, 10, 2}}));
  EXPECT_EQ(prompts({"hi", " cat"}), (Prompts{{0, 10}, {0, 2}}));
  EXPECT_EQ(prompts({7, 8}), (Prompts{{7, 8}}));
  EXPECT_EQ(prompts(json::array({{7, 8}, {9}})), (Prompts{{7, 8}, {9}}));
  EXPECT_EQ(Ids(Completion({{"add_special_tokens", false}}).prompts[0]), (std::vector<int32_t>{10}));
  for (const json& bad : {json(5), json(""), json::array(), json::object(), json::array({1, "a"}), json::array({1.5}),
                          json::array({json::array()}), json::array({13}), json::array({-1})}) {
    const json error = ErrorOf(false, {{"prompt", bad}, {"add_special_tokens", false}});
    ASSERT_FALSE(error.is_null()) << bad;
    EXPECT_EQ(error.at("param"), "prompt") << bad;
  }
  EXPECT_THAT(ErrorOf(false, {{"prompt", {1, 13}}}).at("message"),
              HasSubstr("13 where a token id is expected; allowed: 0 to 12"));
}

TEST(OpenAiRequest, PutsMessagesThroughTheTemplate) {
  EXPECT_EQ(Ids(Chat(json::object()).prompts[0]), (std::vector<int32_t>{7, 8, 10, 9}));
  const json parts = {{{"type", "text"}, {"text", "hi"}}, {{"type", "text"}, {"text", "hi"}}};
  const json messages = {{{"role", "user"}, {"content", parts}}, {{"role", "user"}, {"content", " cat"}}};
  EXPECT_EQ(Ids(Read(true, {{"messages", messages}})->prompts[0]),
            (std::vector<int32_t>{7, 8, 10, 6, 10, 9, 7, 8, 2, 9}));
  const auto error_of = [](const json& message) {
    return ErrorOf(true, {{"messages", json::array({message})}}).at("message").get<std::string>();
  };
  EXPECT_THAT(error_of("hi"), HasSubstr("messages[0] is \"hi\""));
  EXPECT_THAT(error_of({{"content", "hi"}}), HasSubstr("a string as \"role\""));
  EXPECT_THAT(error_of({{"role", "user"}}), HasSubstr("a string as \"content\""));
  EXPECT_THAT(error_of({{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", "x"}}}}}),
              HasSubstr("\"text\""));
  EXPECT_THAT(error_of({{"role", "user"}, {"content", "hi"}, {"name", "x"}}), HasSubstr("name is not a parameter"));
  EXPECT_THAT(error_of({{"role", "assistant"}, {"content", "hi"}, {"tool_calls", {1}}}),
              HasSubstr("tool_calls is [1]"));
}

TEST(OpenAiRequest, NamesParameterValueAndWhatIsAllowed) {
  const auto expect = [](bool chat, const json& body, const std::string& param, const std::string& message) {
    const json error = ErrorOf(chat, body);
    ASSERT_FALSE(error.is_null()) << body;
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_EQ(error.at("param"), param) << error;
    EXPECT_EQ(error.at("code"), nullptr);
    EXPECT_THAT(error.at("message"), HasSubstr(message));
  };
  for (const bool chat : {false, true}) {
    expect(chat, {{"temperature", -1}}, "temperature", "temperature is -1; allowed: finite and at least 0");
    expect(chat, {{"top_p", 0}}, "top_p", "top_p is 0; allowed: above 0");
    expect(chat, {{"top_k", -2}}, "top_k", "top_k is -2; allowed: -1 or 0 (off)");
    expect(chat, {{"min_p", 2}}, "min_p", "min_p is 2; allowed: at least 0");
    expect(chat, {{"n", 0}}, "n", "n is 0; allowed: at least 1");
    expect(chat, {{"n", 101}}, "n", "n is 101 for 1 prompts; together at most 100");
    expect(chat, {{"max_tokens", 0}}, "max_tokens", "max_tokens is 0; allowed: 1 to 6");
    expect(chat, {{"max_tokens", 64}}, "max_tokens", "max_tokens is 64; allowed: 1 to 6");
    expect(chat, {{"min_tokens", 9}, {"max_tokens", 5}}, "min_tokens",
           "min_tokens is 9; allowed: 0 to max_tokens, which is 5");
    expect(chat, {{"presence_penalty", 3}}, "presence_penalty", "presence_penalty is 3; allowed: -2 to 2");
    expect(chat, {{"frequency_penalty", 3}}, "frequency_penalty", "frequency_penalty is 3; allowed: -2 to 2");
    expect(chat, {{"repetition_penalty", 0}}, "repetition_penalty",
           "repetition_penalty is 0; allowed: finite and above 0");
    expect(chat, {{"stop", ""}}, "stop", "stop holds an empty string");
    expect(chat, {{"stop", {"a", 1}}}, "stop", "stop is [\"a\",1]; allowed: a string");
    expect(chat, {{"stop_token_ids", {13}}}, "stop_token_ids", "stop_token_ids holds 13; allowed: 0 to 12");
    expect(chat, {{"logit_bias", {{"x", 1}}}}, "logit_bias", "logit_bias is {\"x\":1}; allowed: an object");
    expect(chat, {{"logit_bias", {{"13", 1}}}}, "logit_bias", "logit_bias holds token 13; allowed: 0 to 12");
    expect(chat, {{"logit_bias", {{"1", 101}}}}, "logit_bias", "logit_bias[1] is 101; allowed: -100 to 100");
    expect(chat, {{"stream", 1}}, "stream", "stream is 1; allowed: true or false");
    expect(chat, {{"stream_options", {{"include_usage", true}}}}, "stream_options", "stream is not true");
    expect(chat, {{"stream", true}, {"stream_options", {{"x", 1}}}}, "stream_options", "include_usage");
    for (const char* name : {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                             "repetition_penalty", "top_k", "n", "max_tokens", "min_tokens", "seed"}) {
      for (const json& bad : json::parse(kNotNumbers))
        expect(chat, {{name, bad}}, name, absl::StrCat(name, " is ", bad.dump()));
    }
    for (const char* name : {"top_k", "n", "max_tokens", "min_tokens", "seed"})
      expect(chat, {{name, 1.5}}, name, "1.5");
    for (const char* name : {"top_k", "n", "max_tokens", "min_tokens"}) {
      expect(chat, {{name, int64_t{1} << 31}}, name, "2147483648; allowed: a whole number of 32 bits");
    }
  }
  expect(false, {{"logprobs", 21}}, "logprobs", "logprobs is 21; allowed: 0 to 20");
  expect(true, {{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs", "top_logprobs is 21; allowed: 0 to 20");
  expect(true, {{"top_logprobs", 2}}, "top_logprobs", "logprobs is not true");
  expect(true, {{"max_tokens", 3}, {"max_completion_tokens", 4}}, "max_completion_tokens", "is 4, but max_tokens is 3");
  expect(true, {{"max_completion_tokens", 0}}, "max_completion_tokens", "max_completion_tokens is 0");
  expect(false, {{"prompt", std::vector<int>(64, 1)}}, "prompt", "prompt has 64 tokens; allowed: at most 63");
}

TEST(OpenAiRequest, CanAskForThePromptAgain) {
  const OpenAiRequest text = Completion({{"echo", true}});
  EXPECT_THAT(text.echoes, ElementsAre("hi"));
  EXPECT_FALSE(text.header.sampling().has_prompt_logprobs());
  const OpenAiRequest ids = Completion({{"prompt", {{0, 2, 3}, {10}}}, {"echo", true}, {"logprobs", 4}});
  EXPECT_THAT(ids.echoes, ElementsAre("cat sat", "hi"));
  EXPECT_EQ(ids.header.sampling().prompt_logprobs(), 4);
  EXPECT_EQ(ids.header.sampling().logprobs(), 4);
  EXPECT_TRUE(Completion({{"echo", true}, {"logprobs", 0}}).header.sampling().has_prompt_logprobs());
  EXPECT_THAT(Completion({{"echo", false}, {"logprobs", 4}}).echoes, SizeIs(0));
  EXPECT_FALSE(Completion({{"echo", false}, {"logprobs", 4}}).header.sampling().has_prompt_logprobs());
  // And for nothing else: then the prompt may fill the context.
  const OpenAiRequest nothing = Completion({{"prompt", std::vector<int>(64, 1)}, {"echo", true}, {"max_tokens", 0}});
  EXPECT_EQ(nothing.header.sampling().max_new_tokens(), 0);
  EXPECT_EQ(ErrorOf(false, {{"prompt", std::vector<int>(64, 1)}, {"echo", true}}).at("param"), "prompt");
  EXPECT_EQ(ErrorOf(false, {{"prompt", std::vector<int>(65, 1)}, {"echo", true}, {"max_tokens", 0}}).at("param"),
            "prompt");
  EXPECT_THAT(ErrorOf(false, {{"echo", true}, {"max_tokens", -1}}).at("message"),
              HasSubstr("max_tokens is -1; allowed: 0 to 62"));
  EXPECT_EQ(ErrorOf(false, {{"echo", 1}}).at("param"), "echo");
}

TEST(OpenAiRequest, RefusesWhatItWouldOtherwiseIgnore) {
  const std::vector<std::pair<bool, json>> refused = {{true, {{"echo", true}}},
                                                      {false, {{"suffix", "x"}}},
                                                      {false, {{"best_of", 2}}},
                                                      {false, {{"use_beam_search", true}}},
                                                      {true, {{"tools", {1}}}},
                                                      {true, {{"tool_choice", "auto"}}},
                                                      {true, {{"response_format", {{"type", "json_object"}}}}},
                                                      {true, {{"reasoning_effort", "high"}}},
                                                      {false, {{"include_stop_str_in_output", true}}},
                                                      {false, {{"temprature", 1}}},
                                                      {true, {{"prompt", "hi"}}},
                                                      {false, {{"max_completion_tokens", 1}}}};
  for (const auto& [chat, body] : refused) {
    const json error = ErrorOf(chat, body);
    ASSERT_FALSE(error.is_null()) << body;
    EXPECT_EQ(error.at("param"), body.begin().key());
    EXPECT_THAT(error.at("message"), HasSubstr("allowed"));
  }
  // What means the same as nothing is taken.
  Completion({{"echo", false}, {"best_of", 2}, {"n", 2}, {"length_penalty", 1.0}, {"skip_special_tokens", true}});
  Chat({{"tools", json::array()}, {"tool_choice", "none"}, {"response_format", {{"type", "text"}}}, {"store", false}});
}

TEST(OpenAiRequest, IsForTheModelThatIsServed) {
  const absl::Status status = Read(false, {{"prompt", "hi"}, {"model", "gpt"}}).status();
  EXPECT_EQ(HttpStatusOf(status), 404);
  const json error = json::parse(ErrorBody(status)).at("error");
  EXPECT_EQ(error.at("code"), "model_not_found");
  EXPECT_THAT(error.at("message"), HasSubstr("model is \"gpt\"; here is only \"tiny\""));
}

TEST(OpenAiRequest, IsAJsonObject) {
  for (const char* body : {"", "{", "[]", "7", "{\"prompt\": \"\xFF\"}", "{\"n\": 1, \"n\": 2, \"prompt\": \"hi\"}"}) {
    EXPECT_EQ(HttpStatusOf(ReadOpenAiRequest(false, body, Model(), kSeed).status()), 400) << body;
  }
}

// ---- Answers.

const OpenAiAnswerOptions& Options() {
  static const auto* options =
      new OpenAiAnswerOptions{.id = "abc", .created = 1700000000, .policy_version = 3, .end_token_ids = {0}};
  return *options;
}

struct Token {
  int32_t id;
  float log_prob;
  std::vector<std::pair<int32_t, float>> alternatives;
};

void Describe(const std::vector<std::pair<int32_t, float>>& alternatives, TokenAlternatives* out) {
  for (const auto& [id, log_prob] : alternatives) {
    out->add_ids(id);
    out->add_log_probs(log_prob);
  }
}

GenerateReply TokensReply(uint64_t prompt, int32_t sample, const Token& token) {
  GenerateReply reply;
  GeneratedTokens& tokens = *reply.mutable_tokens();
  tokens.set_prompt_index(prompt);
  tokens.set_sample(sample);
  tokens.add_ids(token.id);
  tokens.add_log_probs(token.log_prob);
  if (!token.alternatives.empty()) Describe(token.alternatives, tokens.add_alternatives());
  return reply;
}

GenerateReply SequenceReply(uint64_t prompt, int32_t sample, const std::vector<int32_t>& prompt_ids,
                            const std::vector<Token>& answer, GeneratedSequence::FinishReason reason,
                            const std::string& stop_string = "") {
  GenerateReply reply;
  GeneratedSequence& sequence = *reply.mutable_sequence();
  sequence.set_prompt_index(prompt);
  sequence.set_sample(sample);
  sequence.mutable_tokens()->mutable_ids()->Add(prompt_ids.begin(), prompt_ids.end());
  for (const Token& token : answer) {
    sequence.mutable_tokens()->add_ids(token.id);
    sequence.add_log_probs(token.log_prob);
    if (!token.alternatives.empty()) Describe(token.alternatives, sequence.add_alternatives());
  }
  sequence.set_finish_reason(reason);
  sequence.set_stop_string(stop_string);
  return reply;
}

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

// The data of server-sent events; "[DONE]" as a string.
std::vector<json> EventsOf(const std::string& text) {
  std::vector<json> events;
  for (const absl::string_view part : absl::StrSplit(text, "\n\n", absl::SkipEmpty())) {
    EXPECT_TRUE(absl::StartsWith(part, "data: ")) << part;
    const std::string data(part.substr(6));
    events.push_back(data == "[DONE]" ? json(data) : json::parse(data));
  }
  return events;
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

TEST(OpenAiAnswer, AFailureEndsTheStream) {
  const std::vector<json> events = EventsOf(OpenAiAnswer::Failure(absl::UnavailableError("rank 1 is gone")));
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0], json::parse(R"({"error": {"message": "rank 1 is gone", "type": "service_unavailable_error",
                                                 "param": null, "code": null}})"));
  EXPECT_EQ(events[1], "[DONE]");
}

TEST(Metrics, AreInPrometheussFormat) {
  GenerationState state;
  state.sum.set_running(2);
  state.sum.set_waiting(1);
  state.sum.set_blocks(8);
  state.sum.set_blocks_in_use(2);
  state.sum.set_held_places(640);
  state.sum.set_empty_places(20);
  state.sum.set_generated_tokens(30);
  state.sum.set_generated_tokens_per_second(1.5);
  state.policy_version = 4;
  state.paused = true;
  const std::string text = MetricsText(state, "a\"b");
  EXPECT_THAT(text, HasSubstr("# TYPE quartet_num_requests_running gauge\n"
                              "quartet_num_requests_running{model_name=\"a\\\"b\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("quartet_num_requests_waiting{model_name=\"a\\\"b\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("quartet_kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE quartet_kv_cache_held_places_total counter\n"
                              "quartet_kv_cache_held_places_total{model_name=\"a\\\"b\"} 640\n"));
  EXPECT_THAT(text, HasSubstr("quartet_kv_cache_empty_places_total{model_name=\"a\\\"b\"} 20\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE quartet_generation_tokens_total counter\n"
                              "quartet_generation_tokens_total{model_name=\"a\\\"b\"} 30\n"));
  EXPECT_THAT(text, HasSubstr("quartet_generation_tokens_per_second{model_name=\"a\\\"b\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("quartet_policy_version{model_name=\"a\\\"b\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("quartet_paused{model_name=\"a\\\"b\"} 1\n"));
}

}  // namespace
}  // namespace quartet
