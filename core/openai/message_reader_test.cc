// Texts of answers in, what clients read out.

#include "core/openai/message_reader.h"

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/openai/testing/chat_models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

MessageForm FormOf(const Tokenizer& tokenizer) {
  return {.calls = CallFormatOf(tokenizer.chat_template()),
          .thoughts = MessageForm::WritesThoughts(tokenizer.chat_template())};
}

// All of `text`, in pieces of so many bytes.
MessagePart ReadInPieces(MessageReader reader, const std::string& text, size_t bytes, bool ended = true) {
  MessagePart part;
  for (size_t begin = 0; begin < text.size(); begin += bytes) part.Add(reader.Read(text.substr(begin, bytes)));
  part.Add(reader.Finish(ended));
  return part;
}

// The same however the text comes.
MessagePart ReadMessage(const Tokenizer& tokenizer, const MessageForm& form, const std::string& text,
                        bool ended = true) {
  const MessageReader reader(form, tokenizer, "a");
  MessagePart whole = ReadInPieces(reader, text, text.size() + 1, ended);
  for (const size_t bytes : {1, 2, 3, 7}) {
    const MessagePart pieces = ReadInPieces(reader, text, bytes, ended);
    EXPECT_EQ(pieces.content, whole.content);
    EXPECT_EQ(pieces.reasoning, whole.reasoning);
    EXPECT_EQ(pieces.calls, whole.calls);
  }
  return whole;
}

MessagePart ReadMessage(const Tokenizer& tokenizer, const std::string& text, bool ended = true) {
  return ReadMessage(tokenizer, FormOf(tokenizer), text, ended);
}

std::vector<std::string> Calls(const MessagePart& part) {
  std::vector<std::string> calls;
  for (const ordered_json& call : part.calls) {
    EXPECT_EQ(call.at("type"), "function");
    EXPECT_TRUE(IsCallId(call.at("id").get<std::string>())) << call;
    calls.push_back(absl::StrCat(call.at("function").at("name").get<std::string>(), " ",
                                 call.at("function").at("arguments").get<std::string>()));
  }
  return calls;
}

TEST(MessageReader, KnowsTheFormatByTheTemplate) {
  EXPECT_EQ(CallFormatOf(LoadChatModel("qwen")->chat_template())->name, "hermes");
  EXPECT_EQ(CallFormatOf(LoadChatModel("mistral")->chat_template())->name, "mistral");
  EXPECT_EQ(CallFormatOf(LoadChatModel("llama3")->chat_template())->name, "llama3_json");
  EXPECT_EQ(CallFormatOf("{{ messages[0].content }}{% if tools %}{{ tools | tojson }}{% endif %}"), nullptr);
  EXPECT_TRUE(MessageForm::WritesThoughts(LoadChatModel("qwen")->chat_template()));
  EXPECT_FALSE(MessageForm::WritesThoughts(LoadChatModel("llama3")->chat_template()));
}

// tools/golden/make_calls_golden.py
TEST(MessageReader, ReadsTheCallsThatTheParsersOfVllmAndSglangRead) {
  const std::map<std::string, std::string> families = {
      {"hermes", "qwen"}, {"mistral", "mistral"}, {"llama3_json", "llama3"}};
  std::ifstream file("core/openai/testdata/calls.json");
  std::map<std::string, int> with_calls, without;
  for (const json& golden : json::parse(file)) {
    const auto tokenizer = LoadChatModel(families.at(golden.at("format")));
    const MessageForm form = {.calls = CallFormatOf(tokenizer->chat_template())};
    ASSERT_EQ(form.calls->name, golden.at("format"));
    const auto text = golden.at("text").get<std::string>();
    SCOPED_TRACE(text);
    const MessagePart part = ReadMessage(*tokenizer, form, text);
    json calls = json::array();
    for (const ordered_json& call : part.calls) {
      const ordered_json& function = call.at("function");
      calls.push_back(
          {{"name", function.at("name")}, {"arguments", json::parse(function.at("arguments").get<std::string>())}});
    }
    EXPECT_EQ(calls, golden.at("calls"));
    EXPECT_EQ(absl::StripAsciiWhitespace(part.content),
              absl::StripAsciiWhitespace(golden.at("content").get<std::string>()));
    ++(calls.empty() ? without : with_calls)[golden.at("format")];
  }
  for (const auto& [format, family] : families) {
    EXPECT_GE(with_calls[format], 5) << format;
    EXPECT_GE(without[format], 3) << format;
  }
}

// What comes back in the next request is what was drawn, and not what reads alike.
TEST(MessageReader, ReadsWhatTheTemplateWritesBackAsItWas) {
  struct Case {
    const char* family;
    std::string text;
  };
  const std::string calls = R"([{"name": "add", "arguments": {"b": 2, "a": [1, {"z": null}]}, "id": "aB3456789"}, )"
                            R"({"name": "now", "arguments": {}, "id": "000000000"}])";
  for (const auto& [family, text] : std::vector<Case>{
           {"qwen", "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 2, \"a\": 1.5}}\n</tool_call>"},
           {"qwen",
            "<think>\nTwo.\n\nOr three?\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
            "{\"q\": \"<tool_call>ä\\n\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": "
            "{}}\n</tool_call>"},
           {"qwen", "<think>\nHm.\n</think>\n\nNo call: <tool>"},
           {"mistral", "[TOOL_CALLS] " + calls},
           {"llama3", R"({"name": "add", "parameters": {"b": 2, "a": {"x": "}"}}})"}}) {
    SCOPED_TRACE(text);
    const auto tokenizer = LoadChatModel(family);
    const MessagePart part = ReadMessage(*tokenizer, text);
    ordered_json message = {{"role", "assistant"}, {"content", part.content}, {"reasoning_content", part.reasoning}};
    if (part.reasoning.empty()) message.erase("reasoning_content");
    if (!part.calls.empty()) message["tool_calls"] = part.calls;
    const std::vector<ChatMessage> question = {MakeChatMessage("user", "?")};
    std::vector<ChatMessage> both = question;
    both.push_back(ReadChatMessage(message, "message").value());
    const std::string before = tokenizer->ApplyChatTemplate(question, true).value();
    const std::string after = tokenizer->ApplyChatTemplate(both, false).value();
    EXPECT_TRUE(after.starts_with(before + text + "<|")) << after;
  }
}

TEST(MessageReader, LeavesWhatIsNoCallAsItIs) {
  const auto qwen = LoadChatModel("qwen");
  const auto mistral = LoadChatModel("mistral");
  const auto llama = LoadChatModel("llama3");
  for (const auto& [tokenizer, text] : std::vector<std::pair<const Tokenizer*, std::string>>{
           {qwen.get(), "<tool_call>{\"name\": \"f\"}</tool_call>"},
           {qwen.get(), "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>"},
           {qwen.get(), "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>"},
           {qwen.get(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"a\": 2}}</tool_call>"},
           {qwen.get(), "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"why\": 1}</tool_call>"},
           {qwen.get(), "<tool_call>\n<function=f>\n</function>\n</tool_call> \n"},
           {qwen.get(), " a <tool_call> {\"name\": \"f\", \"arguments\": {}"},
           {qwen.get(), "</tool_call><tool_cal"},
           {mistral.get(), "[TOOL_CALLS] []"},
           {mistral.get(), "[TOOL_CALLS]f[ARGS]{}"},
           {mistral.get(), "a [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, 1]"},
           {llama.get(), "<|python_tag|>f.call(a=\"b\")"},
           {llama.get(), " {\"name\": \"f\", \"parameters\": {}, \"arguments\": {}}"},
           {llama.get(), "{\"answer\": 7}\n"},
           {llama.get(), "It is {\"name\": \"f\", \"parameters\": {}}"}}) {
    SCOPED_TRACE(text);
    const MessagePart part = ReadMessage(*tokenizer, text);
    EXPECT_THAT(part.calls, IsEmpty());
    EXPECT_EQ(part.content, text);
  }
}

TEST(MessageReader, ReadsTheCallBesideOneThatIsBroken) {
  const auto qwen = LoadChatModel("qwen");
  const MessagePart part = ReadMessage(*qwen,
                                       "<tool_call>{\"name\": \"f\",</tool_call>\n"
                                       "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>\nand so on");
  EXPECT_THAT(Calls(part), ElementsAre("g {}"));
  EXPECT_EQ(part.content, "<tool_call>{\"name\": \"f\",</tool_call>\nand so on");
}

TEST(MessageReader, KeepsWordsOnBothSidesOfCallsApart) {
  const auto qwen = LoadChatModel("qwen");
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const auto content = [&](const std::string& text) { return ReadMessage(*qwen, text).content; };
  EXPECT_EQ(content("One." + call + "Two."), "One.\nTwo.");
  EXPECT_EQ(content("One. " + call + "\n\n" + call + "\nTwo. " + call), "One. Two.");
  EXPECT_EQ(content("One.\n\n" + call + "Two." + call + "Three."), "One.\n\nTwo.\nThree.");
  EXPECT_EQ(content("<think>Hm.</think>" + call + " One.\n" + call + "\n"), "One.");
}

TEST(MessageReader, TakesACallWithoutItsEndMarkWhereTheAnswerEndsByItself) {
  const std::string text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n";
  const auto qwen = LoadChatModel("qwen");
  EXPECT_THAT(Calls(ReadMessage(*qwen, text, /*ended=*/true)), ElementsAre("f {}"));
  const MessagePart cut = ReadMessage(*qwen, text, /*ended=*/false);
  EXPECT_THAT(cut.calls, IsEmpty());
  EXPECT_EQ(cut.content, text);
}

TEST(MessageReader, LeavesACallThatTheTemplateWouldRefuseAsItIs) {
  const std::string one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const auto strict = LoadChatModel("qwen", {}, true,
                                    "{%- for message in messages if message.tool_calls %}"
                                    "{%- if message.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
                                    "{%- if message.tool_calls[0].function.name == 'g' %}{{ raise_exception('g') }}"
                                    "{%- endif %}{% endfor %}");
  const MessagePart two = ReadMessage(*strict, one + "\n" + one);
  EXPECT_THAT(Calls(two), ElementsAre("f {\"a\":1}"));
  EXPECT_EQ(two.content, one);
  const MessagePart refused = ReadMessage(*strict, "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>");
  EXPECT_THAT(refused.calls, IsEmpty());
  EXPECT_EQ(refused.content, "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>");
}

// As Qwen3's; it comes back as a text that is empty.
TEST(MessageReader, ReadsCallsWithoutWordsWhereTheTemplateLooksIntoTheContent) {
  const auto qwen = LoadChatModel(
      "qwen", {}, true, "{%- for message in messages %}{{ '-' if '</think>' in message.content }}{% endfor %}");
  EXPECT_THAT(Calls(ReadMessage(*qwen, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>")),
              ElementsAre("f {}"));
}

TEST(MessageReader, GivesEachCallAnIdOfItsOwnThatFollowsFromTheAnswers) {
  const auto mistral = LoadChatModel("mistral");
  const auto ids = [&](const std::string& answer, const std::string& text) {
    MessageReader reader(FormOf(*mistral), *mistral, answer);
    MessagePart part = reader.Read(text);
    part.Add(reader.Finish(true));
    std::vector<std::string> found;
    for (const ordered_json& call : part.calls) found.push_back(call.at("id"));
    return found;
  };
  const std::string two = R"([TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}])";
  const std::vector<std::string> first = ids("a", two);
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_TRUE(IsCallId(first[0]) && IsCallId(first[1]));
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(ids("a", two), first);
  EXPECT_NE(ids("b", two)[0], first[0]);
  // Mistral's models write ids that are like those of the template: one is kept, and not given twice.
  const std::vector<std::string> own =
      ids("a", R"([TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcDEF123"}, )"
               R"({"name": "f", "arguments": {}, "id": "abcDEF123"}, {"name": "f", "arguments": {}, "id": "call_1"}])");
  ASSERT_THAT(own, SizeIs(3));
  EXPECT_EQ(own[0], "abcDEF123");
  EXPECT_TRUE(IsCallId(own[1]) && own[1] != own[0]);
  EXPECT_TRUE(IsCallId(own[2]) && own[2] != own[1]);
}

TEST(MessageReader, ReadsLongTexts) {
  const auto qwen = LoadChatModel("qwen");
  const std::string thought(10000, 't'), words(4090, 'w'), argument(9000, 'a');
  const MessagePart part = ReadMessage(
      *qwen, absl::StrCat("<think>", thought, "</think>", words,
                          "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", argument, "\"}}</tool_call>"));
  EXPECT_EQ(part.reasoning, thought);
  EXPECT_EQ(part.content, words);
  ASSERT_THAT(part.calls, SizeIs(1));
  EXPECT_THAT(part.calls[0].at("function").at("arguments").get<std::string>(), testing::HasSubstr(argument));
}

TEST(MessageReader, TellsThoughtsApart) {
  const auto qwen = LoadChatModel("qwen");
  const MessagePart thought = ReadMessage(*qwen, "\n<think>\nOne <tool_call>, two.\n\n</think>\n\n The answer. \n");
  EXPECT_EQ(thought.reasoning, "One <tool_call>, two.");
  EXPECT_EQ(thought.content, "The answer. \n");
  // One that the prompt has begun; one that is cut off; none.
  MessageForm form = FormOf(*qwen);
  form.in_thought = true;
  const MessagePart begun = ReadMessage(*qwen, form, "\nOne.\n</think>\n\nTwo.");
  EXPECT_EQ(begun.reasoning, "One.");
  EXPECT_EQ(begun.content, "Two.");
  const MessagePart cut = ReadMessage(*qwen, "<think>\nOne.\n</thi", /*ended=*/false);
  EXPECT_EQ(cut.reasoning, "One.\n</thi");
  EXPECT_EQ(cut.content, "");
  for (const char* text : {" <thinking> ", "A <think>B</think>", "<thi", "", " ", "</think>"}) {
    const MessagePart none = ReadMessage(*qwen, text);
    EXPECT_EQ(none.reasoning, "");
    EXPECT_EQ(none.content, text);
  }
  EXPECT_EQ(ReadMessage(*LoadChatModel("llama3"), "<think>a</think>b").content, "<think>a</think>b");
}

TEST(MessageReader, LeavesCallsBehindTheMostOfAMessageAsTheyAre) {
  const auto qwen = LoadChatModel("qwen");
  const std::string one = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}</tool_call>";
  std::string all;
  for (int i = 0; i < 130; ++i) all += one;
  const MessagePart part = ReadInPieces(MessageReader(FormOf(*qwen), *qwen, "a"), all, 1000);
  ASSERT_THAT(part.calls, SizeIs(128));
  EXPECT_EQ(part.calls[0]["function"]["arguments"], "{\"a\":[1,2]}");
  EXPECT_EQ(part.calls[127]["function"]["arguments"], "{\"a\":[1,2]}");
  EXPECT_EQ(part.content, one + one);
}

// Nothing is looked through twice, which would take minutes here.
TEST(MessageReader, GoesThroughLongAnswersOnce) {
  const auto qwen = LoadChatModel("qwen");
  const std::string space(100'000, '\n'), text(100'000, '<');
  MessageReader reader(FormOf(*qwen), *qwen, "a");
  MessagePart part;
  const std::string all = space + "<think>" + text + "</think>" + space + "a" + space + "<tool_call>" + text;
  for (const char byte : all) part.Add(reader.Read(std::string_view(&byte, 1)));
  part.Add(reader.Finish(true));
  EXPECT_EQ(part.reasoning, text);
  EXPECT_EQ(part.content, "a" + space + "<tool_call>" + text);
}

}  // namespace
}  // namespace quartet
