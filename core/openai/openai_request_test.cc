// Requests in, what the rollout has to do out.

#include "core/openai/openai_request.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/openai/api_error.h"
#include "core/openai/testing/chat_models.h"
#include "core/openai/testing/openai_requests.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

constexpr char kNotNumbers[] = R"(["1", true, [], {}])";

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
  EXPECT_FALSE(sampling.raw_logprobs());
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
  EXPECT_THAT(error_of({{"role", "user"}}), HasSubstr("messages[0] is {\"role\":\"user\"}; allowed: a \"content\""));
  EXPECT_THAT(error_of({{"role", "user"}, {"content", 7}}), HasSubstr("messages[0].content is 7"));
  EXPECT_THAT(error_of({{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", "x"}}}}}),
              HasSubstr("messages[0].content[0] is {\"image_url\":\"x\",\"type\":\"image_url\"}"));
  EXPECT_THAT(error_of({{"role", "user"}, {"content", "hi"}, {"name", 1}}), HasSubstr("messages[0].name is 1"));
  EXPECT_THAT(error_of({{"role", "user"}, {"content", "hi"}, {"nam", "x"}}), HasSubstr("messages[0].nam is not known"));
  EXPECT_THAT(error_of({{"role", "assistant"}, {"content", "hi"}, {"tool_calls", {1}}}),
              HasSubstr("messages[0].tool_calls[0] is 1"));
  EXPECT_EQ(
      ErrorOf(true, {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}, {{"role", 1}}})}}).at("param"),
      "messages[1].role");
  const json call = {{"function", {{"name", "f"}, {"arguments", "{}"}}}};
  EXPECT_TRUE(
      Read(true, {{"messages", json::array({{{"role", "assistant"}, {"tool_calls", {call}}, {"content", ""}}})}}).ok());
  EXPECT_EQ(ErrorOf(true, {{"chat_template_kwargs", 1}}).at("param"), "chat_template_kwargs");
  const json unread = ErrorOf(true, {{"chat_template_kwargs", {{"unread", 1}}}});
  EXPECT_EQ(unread.at("param"), "chat_template_kwargs");
  EXPECT_THAT(unread.at("message").get<std::string>(),
              HasSubstr("chat_template_kwargs cannot be used: chat.jinja does not read \"unread\""));
}

TEST(OpenAiRequest, GivesToolsToTheTemplateAndReadsCallsWhereTheModelMayMakeThem) {
  const auto qwen = LoadChatModel("qwen");
  const ServedModel model = ServedChatModel(*qwen);
  const json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}};
  const auto read = [&](const json& more, const ServedModel& by) {
    json body = {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})}};
    body.update(more);
    return ReadOpenAiRequest(/*chat=*/true, body.dump(), by, kSeed);
  };
  const auto text = [&](const json& more) { return qwen->Decode(Ids(read(more, model).value().prompts[0]), false); };
  const json tools = json::array({tool});
  EXPECT_EQ(read({{"tools", tools}}, model)->form.calls->name, "hermes");
  EXPECT_EQ(read({{"tools", tools}, {"tool_choice", "auto"}}, model)->form.calls->name, "hermes");
  EXPECT_EQ(read({{"tools", tools}, {"tool_choice", "none"}}, model)->form.calls, nullptr);
  EXPECT_EQ(read({{"tools", json::array()}, {"tool_choice", "auto"}}, model)->form.calls, nullptr);
  EXPECT_THAT(text({{"tools", tools}}), HasSubstr(qwen->ApplyChatTemplate({}, false, {{"tools", tools}}).value()));
  EXPECT_EQ(text({{"tools", tools}, {"tool_choice", "none"}}), text({{"tools", tools}}));
  EXPECT_EQ(text({{"tools", json::array()}}), text(json::object()));
  // What the template knows of thoughts.
  EXPECT_TRUE(read(json::object(), model)->form.thoughts);
  EXPECT_FALSE(read(json::object(), model)->form.in_thought);
  EXPECT_TRUE(read({{"chat_template_kwargs", {{"enable_thinking", true}}}}, model)->form.in_thought);
  EXPECT_FALSE(read({{"chat_template_kwargs", {{"enable_thinking", false}}}}, model)->form.in_thought);

  const auto refused = [&](const json& more, const std::string& param, const std::string& message,
                           const ServedModel& by) {
    const auto request = read(more, by);
    ASSERT_FALSE(request.ok()) << more;
    const json error = json::parse(ErrorBody(request.status())).at("error");
    EXPECT_EQ(error.at("param"), param);
    EXPECT_THAT(error.at("message"), HasSubstr(message));
  };
  const json named = {{"type", "function"}, {"function", {{"name", "f"}}}};
  for (const json& choice : {json("required"), named, json(1)}) {
    refused({{"tools", tools}, {"tool_choice", choice}}, "tool_choice",
            "allowed: \"auto\", \"none\" (answers are drawn freely: trainers cannot compute", model);
  }
  refused({{"tools", tools}, {"parallel_tool_calls", false}}, "parallel_tool_calls", "allowed: null, true (answers are",
          model);
  EXPECT_TRUE(read({{"tools", tools}, {"parallel_tool_calls", true}}, model).ok());
  EXPECT_TRUE(read({{"parallel_tool_calls", false}}, model).ok());
  refused({{"response_format", {{"type", "json_object"}}}}, "response_format",
          "allowed: null, {\"type\":\"text\"} (answers are drawn freely", model);
  for (const json& bad : {json(1), json::object(), json{{"type", "function"}}, json{{"type", "web_search"}},
                          json{{"function", {{"name", 1}}}}, json{{"type", "custom"}, {"function", {{"name", "f"}}}}}) {
    refused({{"tools", json::array({tool, bad})}}, "tools[1]", "allowed: a list of", model);
  }
  for (const json& more : {json::object(), json{{"tools", tools}}}) {
    json both = more;
    both["chat_template_kwargs"] = {{"tools", tools}};
    refused(both, "chat_template_kwargs", "has tools, which would not be read in answers; allowed: the parameter tools",
            model);
  }
  std::filesystem::path folder = testing::TempDir() + "/without_tools";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file("core/tokenizer/testdata/byte_level/tokenizer.json", folder / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::ofstream(folder / "chat_template.jinja") << "{% for m in messages %}{{ m.content }}{% endfor %}";
  const auto plain = Tokenizer::Load(folder).value();
  refused({{"tools", tools}}, "tools", "tools cannot be used: chat_template.jinja does not read \"tools\"",
          ServedChatModel(*plain));
}

// The model was trained on calls as the template writes them, and reads what it has written itself, not a sorted form.
TEST(OpenAiRequest, KeepsTheOrderOfTheKeysOfCallsAndTools) {
  const std::string folder = testing::TempDir() + "/ordered";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file("core/tokenizer/testdata/byte_level/tokenizer.json", folder + "/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::ofstream(folder + "/chat_template.jinja")
      << "{{ tools | tojson }}{% for m in messages %}{{ m.content or '' }}"
         "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}";
  const auto tokenizer = Tokenizer::Load(folder).value();
  ServedModel model = Model();
  model.tokenizer = tokenizer.get();
  model.vocab_size = tokenizer->vocab_size();
  model.max_model_len = 1000;
  const auto read = [&](const std::string& arguments) {
    const auto request = ReadOpenAiRequest(
        /*chat=*/true,
        R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"id": "1", )"
        R"("function": {"name": "f", "arguments": )" +
            arguments + R"(}}]}], "tools": [{"function": {"name": "f", "y": 2, "b": 3}, "a": 1}]})",
        model, kSeed);
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? tokenizer->Decode(Ids(request->prompts[0]), false) : "";
  };
  const std::string want =
      R"([{"function": {"name": "f", "y": 2, "b": 3}, "a": 1}]hi{"z": 1, "k": {"y": [2], "b": 3}, "a": 0})";
  EXPECT_EQ(read(R"({"z": 1, "k": {"y": [2], "b": 3}, "a": 0})"), want);
  EXPECT_EQ(read(R"("{\"z\": 1, \"k\": {\"y\": [2], \"b\": 3}, \"a\": 0}")"), want);
}

TEST(OpenAiRequest, TakesWhatClientsSendAlong) {
  const auto ids = [](const json& message) {
    return Ids(Read(true, {{"messages", json::array({message})}})->prompts[0]);
  };
  const std::vector<int32_t> hi = ids({{"role", "user"}, {"content", "hi"}});
  EXPECT_EQ(ids({{"role", "user"}, {"content", "hi"}, {"name", "someone"}}), hi);
  const json part = {{"type", "text"}, {"text", "hi"}, {"cache_control", {{"type", "ephemeral"}}}};
  EXPECT_EQ(ids({{"role", "user"}, {"content", json::array({part})}}), hi);
  const std::vector<int32_t> empty = ids({{"role", "user"}, {"content", ""}});
  EXPECT_NE(empty, hi);
  EXPECT_EQ(ids({{"role", "user"}, {"content", nullptr}}), empty);
  const json usage = {{"include_usage", true}, {"continuous_usage_stats", true}};
  EXPECT_TRUE(Completion({{"stream", true}, {"stream_options", usage}}).continuous_usage);
  EXPECT_FALSE(Completion({{"stream", true}, {"stream_options", {{"include_usage", true}}}}).continuous_usage);
}

TEST(OpenAiRequest, CanAskForThePromptsLogProbabilities) {
  for (const bool chat : {false, true}) {
    const OpenAiRequest none = chat ? Chat({{"prompt_logprobs", nullptr}}) : Completion({{"prompt_logprobs", nullptr}});
    EXPECT_FALSE(none.header.sampling().has_prompt_logprobs());
    const OpenAiRequest own = chat ? Chat({{"prompt_logprobs", 0}}) : Completion({{"prompt_logprobs", 0}});
    EXPECT_TRUE(own.header.sampling().has_prompt_logprobs());
    EXPECT_TRUE(own.header.sampling().raw_logprobs());
    EXPECT_EQ(own.prompt_logprobs, 0);
    for (const int bad : {-1, 21}) {
      EXPECT_THAT(ErrorOf(chat, {{"prompt_logprobs", bad}}).at("message"),
                  absl::StrCat("prompt_logprobs is ", bad, "; allowed: 0 to 20"));
    }
    EXPECT_EQ(ErrorOf(chat, {{"prompt_logprobs", 0}, {"stream", true}}).at("param"), "prompt_logprobs");
  }
  EXPECT_EQ(Completion({{"echo", true}, {"logprobs", 3}, {"prompt_logprobs", 1}}).header.sampling().prompt_logprobs(),
            3);
}

// What a reader would do with each prompt is not done for too many.
TEST(OpenAiRequest, CountsItsPromptsBeforeItReadsThem) {
  json prompts = json::array();
  for (int i = 0; i < 101; ++i) prompts.push_back(i == 0 ? json(true) : json("hi"));
  EXPECT_THAT(ErrorOf(false, {{"prompt", prompts}}).at("message"),
              HasSubstr("n is 1 for 101 prompts; together at most 100 sequences"));
}

TEST(OpenAiRequest, IsWeighedByWhatItBecomes) {
  constexpr int64_t kCount = 1000;
  const auto list = [](const std::string& one) {
    std::string text = "[" + one;
    for (int64_t i = 1; i < kCount; ++i) text += "," + one;
    return text + "]";
  };
  EXPECT_GE(JsonBytes(list("1")), kCount * 3 * sizeof(json));
  EXPECT_GE(JsonBytes(list("[]")), kCount * (3 * sizeof(json) + sizeof(std::vector<json>)));
  EXPECT_GE(JsonBytes(list("\"\"")), kCount * (3 * sizeof(json) + sizeof(std::string)));
  EXPECT_GE(JsonBytes(list("{\"a\":1}")), kCount * (3 * sizeof(json) + sizeof(json::object_t) + 96));
  // A text is a text, whatever is in it.
  const std::string text = json(list("{[\"\\,:]}")).dump();
  EXPECT_LT(JsonBytes(text), 16 * static_cast<int64_t>(text.size()) + 200);
  EXPECT_LT(JsonBytes("{}" + std::string(1'000'000, ' ')), 200);
}

TEST(OpenAiRequest, TellsOfNoFolderOfTheServer) {
  EXPECT_EQ(WithoutFolder("/home/alice/runs/tiny/tokenizer.json: pre_tokenizer: too long"),
            "tokenizer.json: pre_tokenizer: too long");
  EXPECT_EQ(WithoutFolder("roles must alternate: a/b"), "roles must alternate: a/b");
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
    for (const char* other : {"015", "+15", " 15", "15 ", "-0", ""}) {
      expect(chat, {{"logit_bias", {{"5", 1}, {other, 2}}}}, "logit_bias", "token ids as names (\"15\", not \"015\")");
    }
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
  const json too_long = ErrorOf(false, {{"prompt", std::vector<int>(64, 1)}});
  EXPECT_THAT(too_long.at("message"), HasSubstr("prompt has 64 tokens; allowed: at most 63"));
  EXPECT_EQ(too_long.at("param"), "prompt");
  EXPECT_EQ(too_long.at("code"), "context_length_exceeded");
}

TEST(OpenAiRequest, CanAskForThePromptAgain) {
  const OpenAiRequest text = Completion({{"echo", true}});
  EXPECT_THAT(text.echoes, ElementsAre("hi"));
  EXPECT_FALSE(text.header.sampling().has_prompt_logprobs());
  const OpenAiRequest ids = Completion({{"prompt", {{0, 2, 3}, {10}}}, {"echo", true}, {"logprobs", 4}});
  EXPECT_THAT(ids.echoes, ElementsAre("cat sat", "hi"));
  EXPECT_EQ(ids.header.sampling().prompt_logprobs(), 4);
  // Where the folder says clean_up_tokenization_spaces, too.
  const std::unique_ptr<Tokenizer> cleaned = Tokenizer::Load("core/tokenizer/testdata/cleaned").value();
  ServedModel model = Model();
  model.tokenizer = cleaned.get();
  model.vocab_size = cleaned->vocab_size();
  const json asked = {{"prompt", cleaned->Encode("e , s", false).value()}, {"echo", true}};
  EXPECT_THAT(ReadOpenAiRequest(false, asked.dump(), model, kSeed).value().echoes, ElementsAre("e , s"));
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
                                                      {true, {{"tools", 1}}},
                                                      {true, {{"tool_choice", "required"}}},
                                                      {true, {{"response_format", {{"type", "json_object"}}}}},
                                                      {true, {{"reasoning_effort", "high"}}},
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

TEST(OpenAiRequest, TellsTheParametersThatWorkWhereOneIsUnknown) {
  const auto told = [](bool chat) {
    const std::string message = ErrorOf(chat, {{"temprature", 1}}).at("message");
    const std::string mark = "temprature is not a parameter that is known here; allowed: ";
    EXPECT_TRUE(message.starts_with(mark)) << message;
    return std::vector<std::string>(absl::StrSplit(message.substr(mark.size()), ", "));
  };
  const std::vector<std::string> common = {"add_special_tokens",
                                           "frequency_penalty",
                                           "ignore_eos",
                                           "include_stop_str_in_output",
                                           "logit_bias",
                                           "logprobs",
                                           "max_tokens",
                                           "min_p",
                                           "min_tokens",
                                           "model",
                                           "n",
                                           "presence_penalty",
                                           "prompt_logprobs",
                                           "repetition_penalty",
                                           "seed",
                                           "stop",
                                           "stop_token_ids",
                                           "stream",
                                           "stream_options",
                                           "temperature",
                                           "top_k",
                                           "top_p"};
  std::vector<std::string> completion = common, chat = common;
  completion.insert(completion.end(), {"echo", "prompt"});
  chat.insert(chat.end(),
              {"chat_template_kwargs", "max_completion_tokens", "messages", "tool_choice", "tools", "top_logprobs"});
  EXPECT_THAT(told(false), UnorderedElementsAreArray(completion));
  EXPECT_THAT(told(true), UnorderedElementsAreArray(chat));
}

// 20 log-probabilities a token of a vocabulary of 150,000.
TEST(OpenAiRequest, LeavesAnAnswerThatIsToldWithLogProbabilitiesRoomInItsMessage) {
  ServedModel model = Model();
  model.vocab_size = 150'000;
  model.max_model_len = 10'000'000;
  const auto longest = [&](const json& more) {
    json body = {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})}};
    body.update(more);
    return ReadOpenAiRequest(true, body.dump(), model, kSeed)->header.sampling().max_new_tokens();
  };
  EXPECT_EQ(longest(json::object()), 9'999'996);
  const int32_t told = longest({{"logprobs", true}, {"top_logprobs", 20}});
  EXPECT_LT(told, 1'700'000);
  EXPECT_GT(told, 1'500'000);
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

}  // namespace
}  // namespace quartet
