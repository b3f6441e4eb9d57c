#include "core/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kTestdata[] = "core/tokenizer/testdata/";

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return json::parse(file);
}

std::unique_ptr<Tokenizer> LoadGolden(const std::string& name) {
  auto tokenizer = Tokenizer::Load(kTestdata + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// What transformers says, written by tools/golden/make_tokenizer.py.
class GoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, EncodesAsTransformersDoes) {
  const auto tokenizer = LoadGolden(GetParam());
  const json golden = ReadJson(std::string(kTestdata) + GetParam() + "/golden.json");
  ASSERT_GE(golden["encode"].size(), 20);
  for (const json& row : golden["encode"]) {
    const auto text = row[0].get<std::string>();
    EXPECT_EQ(tokenizer->Encode(text, false).value(), row[1].get<std::vector<int32_t>>()) << row[0];
    EXPECT_EQ(tokenizer->Encode(text, true).value(), row[2].get<std::vector<int32_t>>()) << row[0];
    EXPECT_EQ(tokenizer->Encode(text, true).value(), row[2].get<std::vector<int32_t>>())
        << row[0] << " for the second time";
  }
}

TEST_P(GoldenTest, SaysWhatTransformersPutsBeforeAText) {
  const auto tokenizer = LoadGolden(GetParam());
  const json golden = ReadJson(std::string(kTestdata) + GetParam() + "/golden.json");
  for (const json& row : golden["encode"]) {
    const auto plain = row[1].get<std::vector<int32_t>>();
    const auto whole = row[2].get<std::vector<int32_t>>();
    std::vector<int32_t> begun = tokenizer->ids_before_text();
    begun.insert(begun.end(), plain.begin(), plain.end());
    ASSERT_LE(begun.size(), whole.size()) << row[0];
    EXPECT_TRUE(std::equal(begun.begin(), begun.end(), whole.begin())) << row[0];
  }
}

TEST_P(GoldenTest, DecodesAsTransformersDoes) {
  const auto tokenizer = LoadGolden(GetParam());
  const json golden = ReadJson(std::string(kTestdata) + GetParam() + "/golden.json");
  ASSERT_GE(golden["decode"].size(), 60);
  for (const json& row : golden["decode"]) {
    const auto ids = row[0].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer->Decode(ids, false), row[1].get<std::string>()) << row[0];
    EXPECT_EQ(tokenizer->Decode(ids, true), row[2].get<std::string>()) << row[0];
  }
}

TEST_P(GoldenTest, AgreesOnVocabularyAndChat) {
  const auto tokenizer = LoadGolden(GetParam());
  const json golden = ReadJson(std::string(kTestdata) + GetParam() + "/golden.json");
  EXPECT_EQ(tokenizer->vocab_size(), golden["vocab_size"].get<int32_t>());
  for (const json& row : golden["chat"]) {
    std::vector<ChatMessage> messages;
    for (const json& message : row[0]) {
      messages.push_back(ReadChatMessage(message, absl::StrCat("messages[", messages.size(), "]")).value());
    }
    const auto text = tokenizer->ApplyChatTemplate(messages, true);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, row[1].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, GoldenTest,
                         ::testing::Values("byte_level", "split_regex", "characters", "metaspace", "words", "cleaned",
                                           "llama_class", "llama_model", "qwen2_model", "gemma_class", "gpt_neox_class",
                                           "gpt_neox_without_bos", "cohere_class", "gpt2_class"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, FindsTokensByName) {
  const auto tokenizer = LoadGolden("byte_level");
  const auto golden = ReadJson(std::string(kTestdata) + "byte_level/tokenizer.json");
  EXPECT_EQ(tokenizer->TokenToId("<|end|>"), 2);
  EXPECT_EQ(tokenizer->TokenToId("a"), golden["model"]["vocab"]["a"].get<int32_t>());
  EXPECT_EQ(tokenizer->TokenToId("no such token"), std::nullopt);
}

TEST(Tokenizer, ReadsInvalidUtf8AsReplacementCharacters) {
  const auto tokenizer = LoadGolden("byte_level");
  EXPECT_EQ(*tokenizer->Encode("a\xff\xc3", false), *tokenizer->Encode("a\xef\xbf\xbd\xef\xbf\xbd", false));
}

TEST(Tokenizer, DropsIdsThatItDoesNotKnow) {
  const auto tokenizer = LoadGolden("characters");
  std::vector<int32_t> ids = *tokenizer->Encode("12", false);
  ids.push_back(-1);
  ids.push_back(1 << 30);
  EXPECT_EQ(tokenizer->Decode(ids, false), "12");
}

TEST(Tokenizer, ServesManyThreads) {
  const auto tokenizer = LoadGolden("split_regex");
  const std::string text = "The quick brown fox doesn't jump over 12345 lazy dogs.\n\n";
  const std::vector<int32_t> expected = *LoadGolden("split_regex")->Encode(text, true);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) EXPECT_EQ(*tokenizer->Encode(text, true), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, SaysThatThereIsNoChatTemplate) {
  const auto text = LoadGolden("characters")->ApplyChatTemplate({MakeChatMessage("user", "1")}, true);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("characters/chat_template.jinja"));
}

TEST(Tokenizer, OpensTheAssistantsTurnOnlyWhereItIsToldTo) {
  const auto tokenizer = LoadGolden("byte_level");
  const std::vector<ChatMessage> messages = {MakeChatMessage("system", "s"), MakeChatMessage("user", "1")};
  EXPECT_EQ(*tokenizer->ApplyChatTemplate(messages, true),
            *tokenizer->ApplyChatTemplate(messages, false) + "<|start|>assistant\n");
}

class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/tokenizer_" + std::to_string(getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }
  std::string Error() {
    const absl::Status status = Tokenizer::Load(folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
  // The error of the byte-level tokenizer after `change`.
  std::string ErrorAfter(const std::function<void(json*)>& change) {
    json file = ReadJson(std::string(kTestdata) + "byte_level/tokenizer.json");
    change(&file);
    Write("tokenizer.json", file.dump());
    const std::string error = Error();
    EXPECT_THAT(error, HasSubstr(folder_ + "/tokenizer.json"));
    return error;
  }
  std::string folder_;
};

TEST_F(LoadTest, NamesAFileThatIsMissing) {
  const absl::Status status = Tokenizer::Load(folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + "/tokenizer.json"));
}

TEST_F(LoadTest, RefusesByNameWhatIsNotSupported) {
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["type"] = "Unigram"; }), HasSubstr("Unigram"));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["end_of_word_suffix"] = "</w>"; }), HasSubstr("</w>"));
  EXPECT_THAT(ErrorAfter([](json* file) {
                (*file)["normalizer"] = {{"type", "Nmt"}};
              }),
              HasSubstr("normalizer: the type \"Nmt\""));
  EXPECT_THAT(ErrorAfter([](json* file) {
                (*file)["pre_tokenizer"] = {{"type", "Sequence"},
                                            {"pretokenizers", json::array({json{{"type", "UnicodeScripts"}}})}};
              }),
              HasSubstr("pre_tokenizer: Sequence: [0]: the type \"UnicodeScripts\""));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["decoder"] = {{"type", "CTC"}}; }), HasSubstr("decoder: "));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["post_processor"] = {{"type", "X"}}; }), HasSubstr("post_processor"));
  EXPECT_THAT(
      ErrorAfter([](json* file) {
        (*file)["pre_tokenizer"] = {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "(unclosed"}}}};
      }),
      HasSubstr("(unclosed"));
}

TEST_F(LoadTest, RefusesAPostProcessorWithIdsBeyondTheVocabulary) {
  const auto adds = [](int64_t id) {
    return [id](json* file) {
      (*file)["post_processor"] = {
          {"type", "TemplateProcessing"},
          {"single",
           {{{"SpecialToken", {{"id", "<x>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
          {"special_tokens", {{"<x>", {{"id", "<x>"}, {"ids", {id}}}}}}};
    };
  };
  EXPECT_THAT(ErrorAfter(adds(100000)),
              HasSubstr("post_processor: it puts the token id 100000 around a text; allowed"));
}

TEST_F(LoadTest, RefusesAMergeOfUnknownTokens) {
  EXPECT_THAT(ErrorAfter([](json* file) {
                (*file)["model"]["merges"][3] = json::array({"zzz", "a"});
              }),
              HasSubstr("merges[3]: the token \"zzz\""));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["merges"][2] = "a b c"; }), HasSubstr("merges[2]"));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["merges"][2] = 5; }), HasSubstr("merges[2]"));
}

TEST_F(LoadTest, RefusesIdsThatMakeNoSense) {
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["vocab"]["a"] = -1; }), HasSubstr("\"a\""));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["vocab"]["a"] = 4000000000u; }), HasSubstr("4000000000"));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["vocab"]["a"] = 0; }), HasSubstr("share the id 0"));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["model"]["unk_token"] = "<none>"; }), HasSubstr("unk_token"));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["added_tokens"][1]["id"] = 7; }), HasSubstr("added_tokens[1]"));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["added_tokens"][1]["content"] = ""; }), HasSubstr("added_tokens[1]"));
  EXPECT_THAT(ErrorAfter([](json* file) { (*file)["added_tokens"][1]["lstrip"] = 1; }), HasSubstr("lstrip"));
}

TEST_F(LoadTest, RefusesAFileCutAnywhere) {
  const std::string whole = ReadJson(std::string(kTestdata) + "characters/tokenizer.json").dump();
  for (size_t size = 0; size < whole.size(); ++size) {
    Write("tokenizer.json", whole.substr(0, size));
    ASSERT_THAT(Error(), HasSubstr(folder_ + "/tokenizer.json: not well-formed JSON at line 1")) << size;
  }
  Write("tokenizer.json", whole);
  EXPECT_TRUE(Tokenizer::Load(folder_).ok());
}

// Replaces one value after another by values of other types: an error or a tokenizer, never a crash.
TEST_F(LoadTest, SurvivesValuesOfOtherTypes) {
  for (const char* name : {"byte_level", "split_regex", "metaspace", "words"}) {
    json file = ReadJson(std::string(kTestdata) + name + "/tokenizer.json");
    file["model"]["vocab"] = {{"a", 0}, {"<unk>", 1}};
    file["model"]["merges"] = json::array();
    file["added_tokens"] = json::array({file["added_tokens"][0]});
    file["added_tokens"][0]["id"] = 2;
    const json places = file.flatten();
    for (const auto& [pointer, value] : places.items()) {
      for (const json& other : {json(nullptr), json(true), json(-1), json(1.5), json("x"), json::array(),
                                json::object(), json::array({1, "a", nullptr}), json{{"a", 1}}}) {
        json changed = file;
        changed[json::json_pointer(pointer)] = other;
        Write("tokenizer.json", changed.dump());
        const auto tokenizer = Tokenizer::Load(folder_);
        if (!tokenizer.ok()) continue;
        const auto ids = (*tokenizer)->Encode("a b\n1", true);
        if (ids.ok()) (*tokenizer)->Decode(*ids, true);
      }
    }
  }
}

TEST_F(LoadTest, NamesTheStepWhosePatternCostsTooMuch) {
  json file = ReadJson(std::string(kTestdata) + "characters/tokenizer.json");
  const json split = {
      {"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}, {"pattern", {{"Regex", "(a|a)+$"}}}};
  const std::string text = std::string(60, 'a') + "b";
  const auto error_of = [&] {
    Write("tokenizer.json", file.dump());
    const auto tokenizer = Tokenizer::Load(folder_);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto ids = (*tokenizer)->Encode(text, false);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument) << ids.status();
    return std::string(ids.status().message());
  };
  const std::string what = "the pattern \"(a|a)+$\" takes more backtracking on a text of 61 bytes than is allowed";
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = split;
  EXPECT_EQ(error_of(), folder_ + "/tokenizer.json: pre_tokenizer: Split: " + what);
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "WhitespaceSplit"}}, split}}};
  EXPECT_EQ(error_of(), folder_ + "/tokenizer.json: pre_tokenizer: Sequence: [1]: Split: " + what);
  file["pre_tokenizer"] = nullptr;
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "(a|a)+$"}}}, {"content", ""}};
  EXPECT_EQ(error_of(), folder_ + "/tokenizer.json: normalizer: Replace: " + what);
  // An added token is looked for as the normalizer makes it.
  file["added_tokens"].push_back({{"id", 1000}, {"content", text}, {"normalized", true}});
  Write("tokenizer.json", file.dump());
  EXPECT_EQ(Error(), folder_ + "/tokenizer.json: normalizer: Replace: " + what);
  // Many cheap ones add up.
  file["added_tokens"].erase(file["added_tokens"].size() - 1);
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "WhitespaceSplit"}}, split}}};
  Write("tokenizer.json", file.dump());
  std::string words;
  for (int i = 0; i < 1000; ++i) words += std::string(16, 'a') + "b ";
  EXPECT_THAT(std::string((*Tokenizer::Load(folder_))->Encode(words, false).status().message()),
              HasSubstr("more backtracking on a text of 17 bytes"));
}

TEST_F(LoadTest, TakesTheChatTemplateThatItIsGiven) {
  std::filesystem::copy(std::string(kTestdata) + "byte_level/tokenizer.json", folder_ + "/tokenizer.json");
  Write("chat_template.jinja", "the folder's");
  Write("mine.jinja", "mine: {{ messages[0].content }}");
  const auto tokenizer = Tokenizer::Load(folder_, {.file = folder_ + "/mine.jinja"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->ApplyChatTemplate({MakeChatMessage("user", "1")}, true), "mine: 1");
  const absl::Status missing = Tokenizer::Load(folder_, {.file = folder_ + "/none.jinja"}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), testing::HasSubstr(folder_ + "/none.jinja"));
}

TEST_F(LoadTest, GivesTheTemplateToolsInTheirOrder) {
  std::filesystem::copy(std::string(kTestdata) + "byte_level/tokenizer.json", folder_ + "/tokenizer.json");
  Write("chat_template.jinja", "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}");
  const auto tokenizer = Tokenizer::Load(folder_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto tools = nlohmann::ordered_json::parse(R"([{"type":"function","function":{"name":"f","arguments":{}}}])");
  EXPECT_EQ(*(*tokenizer)->ApplyChatTemplate({MakeChatMessage("user", "1")}, true, {{"tools", tools}}),
            R"([{"type": "function", "function": {"name": "f", "arguments": {}}}]1)");
  EXPECT_EQ(*(*tokenizer)->ApplyChatTemplate({MakeChatMessage("user", "1")}, true), "1");
}

TEST_F(LoadTest, WritesCallsResultsThoughtsAndValuesAsTransformersDoes) {
  std::ifstream file(std::string(kTestdata) + "tool_chats.json");
  const auto golden = nlohmann::ordered_json::parse(file);
  std::filesystem::copy(std::string(kTestdata) + "byte_level/tokenizer.json", folder_ + "/tokenizer.json");
  Write("chat_template.jinja", golden["template"]);
  const auto tokenizer = Tokenizer::Load(folder_).value();
  ASSERT_GE(golden["cases"].size(), 12);
  for (const auto& row : golden["cases"]) {
    std::vector<ChatMessage> messages;
    for (const auto& message : row["messages"]) messages.push_back(ReadChatMessage(message, "message").value());
    EXPECT_EQ(tokenizer->ApplyChatTemplate(messages, true, row["kwargs"]).value(), row["text"].get<std::string>());
    const auto given = Tokenizer::Load(folder_, {.kwargs = row["kwargs"].dump()}).value();
    EXPECT_EQ(given->ApplyChatTemplate(messages, true).value(), row["text"].get<std::string>());
  }
}

TEST_F(LoadTest, PutsNoEndBehindAPrompt) {
  std::filesystem::copy(std::string(kTestdata) + "llama_class/tokenizer.json", folder_ + "/tokenizer.json");
  Write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "add_eos_token": true})");
  const auto tokenizer = Tokenizer::Load(folder_).value();
  const std::vector<int32_t> plain = tokenizer->Encode("se", false).value();
  const int32_t bos = *tokenizer->TokenToId("<s>"), eos = *tokenizer->TokenToId("</s>");
  std::vector<int32_t> prompt = {bos};
  prompt.insert(prompt.end(), plain.begin(), plain.end());
  EXPECT_EQ(tokenizer->EncodePrompt("se").value(), prompt);
  prompt.push_back(eos);
  EXPECT_EQ(tokenizer->Encode("se", true).value(), prompt) << "as transformers has it";
}

TEST_F(LoadTest, SaysWhichWholeNumbersTemplatesHave) {
  std::filesystem::copy(std::string(kTestdata) + "byte_level/tokenizer.json", folder_ + "/tokenizer.json");
  Write("chat_template.jinja", "{{ most }}");
  const auto tokenizer = Tokenizer::Load(folder_).value();
  const auto text = [&](uint64_t most) { return tokenizer->ApplyChatTemplate({}, true, {{"most", most}}); };
  EXPECT_EQ(text(9223372036854775807u).value(), "9223372036854775807");
  EXPECT_THAT(std::string(text(9223372036854775808u).status().message()),
              HasSubstr("the number 9223372036854775808 is too large for a template: up to 9223372036854775807"));
}

TEST_F(LoadTest, LeavesNothingOutThatTheTemplateDoesNotWrite) {
  std::filesystem::copy(std::string(kTestdata) + "byte_level/tokenizer.json", folder_ + "/tokenizer.json");
  Write("chat_template.jinja", "{% for message in messages %}{{ message.content }}{% endfor %}");
  const auto tokenizer = Tokenizer::Load(folder_).value();
  const auto error = [&](const char* message, const nlohmann::ordered_json& kwargs) {
    const std::vector<ChatMessage> messages = {
        MakeChatMessage("user", "1"), ReadChatMessage(nlohmann::ordered_json::parse(message), "message").value()};
    return std::string(tokenizer->ApplyChatTemplate(messages, true, kwargs).status().message());
  };
  const char* plain = R"({"role": "assistant", "content": "a"})";
  EXPECT_EQ(error(plain, nlohmann::ordered_json::object()), "");
  EXPECT_EQ(error(R"({"role": "assistant", "content": "a", "tool_calls": [{"name": "f"}]})", {{"x", 1}}),
            folder_ + "/chat_template.jinja does not read \"x\"");
  for (const auto& [part, message] :
       {std::pair("tool_calls", R"({"role": "assistant", "content": "a", "tool_calls": [{"name": "f"}]})"),
        std::pair("reasoning_content", R"({"role": "assistant", "content": "a", "reasoning_content": "b"})")}) {
    EXPECT_EQ(error(message, nlohmann::ordered_json::object()),
              folder_ + "/chat_template.jinja does not write the \"" + part +
                  "\" that message 1 (counted from 0) has; leave it out, or give a template that does");
  }
  EXPECT_THAT(error(plain, {{"tools", nlohmann::ordered_json::array({1})}}), HasSubstr("does not read \"tools\""));
  EXPECT_THAT(error(plain, {{"messages", 1}}), HasSubstr("\"messages\" is given to every chat template"));
  const auto loads = [&](const char* kwargs) {
    return std::string(Tokenizer::Load(folder_, {.kwargs = kwargs}).status().message());
  };
  EXPECT_THAT(loads("{"), HasSubstr("chat_template_kwargs: not well-formed JSON"));
  EXPECT_EQ(loads("[1]"), "chat_template_kwargs: \"[1]\" is no JSON object such as {\"enable_thinking\": false}");
  EXPECT_EQ(loads(R"({"enable_thinking": false})"),
            "chat_template_kwargs: " + folder_ + "/chat_template.jinja does not read \"enable_thinking\"");
  EXPECT_EQ(loads(R"({"message": 1})"),
            "chat_template_kwargs: " + folder_ + "/chat_template.jinja does not read \"message\"");
  EXPECT_THAT(loads(R"({"bos_token": ""})"), HasSubstr("\"bos_token\" is given to every chat template"));
}

TEST_F(LoadTest, NamesTheConfigurationThatIsWrong) {
  std::filesystem::copy(std::string(kTestdata) + "characters/tokenizer.json", folder_ + "/tokenizer.json");
  Write("tokenizer_config.json", "{");
  EXPECT_THAT(Error(), HasSubstr("tokenizer_config.json: not well-formed"));
  Write("tokenizer_config.json", R"({"bos_token": 5})");
  EXPECT_THAT(Error(), HasSubstr("tokenizer_config.json: bos_token"));
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool", "template": ""}]})");
  EXPECT_THAT(Error(), HasSubstr("chat_template"));
  Write("tokenizer_config.json", R"({"chat_template": "a\n{% frobnicate %}"})");
  EXPECT_THAT(Error(), HasSubstr("line 2: the statement \"frobnicate\""));
  Write("chat_template.jinja", "{{ messages[0].content | frobnicate }}");
  const auto tokenizer = Tokenizer::Load(folder_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto text = (*tokenizer)->ApplyChatTemplate({MakeChatMessage("user", "1")}, true);
  EXPECT_THAT(std::string(text.status().message()),
              HasSubstr("chat_template.jinja: line 1: the filter \"frobnicate\""));
}

}  // namespace
}  // namespace quartet
