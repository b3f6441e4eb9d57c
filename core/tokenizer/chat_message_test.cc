#include "core/tokenizer/chat_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

using OrderedJson = nlohmann::ordered_json;
using ::testing::HasSubstr;

OrderedJson Read(const char* text) {
  const auto message = ReadChatMessage(OrderedJson::parse(text), "m");
  return message.ok() ? *message : OrderedJson(std::string(message.status().message()));
}
std::string Error(const char* text) {
  const auto message = ReadChatMessage(OrderedJson::parse(text), "m");
  return message.ok() ? "no error" : std::string(message.status().message());
}

TEST(ChatMessage, IsWrittenInOneWayHoweverItIsGiven) {
  EXPECT_EQ(Read(R"({"content": "hi", "name": null, "tool_calls": [], "role": "assistant"})"),
            MakeChatMessage("assistant", "hi"));
  EXPECT_EQ(Read(R"({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": 1},
                                                 {"type": "text", "text": "b"}]})"),
            MakeChatMessage("user", "a\nb"));
  const OrderedJson call =
      OrderedJson::parse(R"({"role": "assistant", "content": null, "reasoning_content": "thus", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": null}}}]})");
  EXPECT_EQ(Read(R"({"role": "assistant", "reasoning_content": "thus", "tool_calls": [
      {"id": "1", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": null}"}}]})"),
            call);
  EXPECT_EQ(Read(R"({"role": "assistant", "content": null, "reasoning_content": "thus", "tool_calls": [
      {"arguments": {"z": 1, "a": null}, "name": "f", "id": "1"}]})"),
            call);
  for (const char* none : {R"("arguments": "", )", R"("arguments": null, )", ""}) {
    EXPECT_EQ(Read((std::string(R"({"role": "assistant", "content": "", "tool_calls": [{"function": {)") + none +
                    R"("name": "f"}}]})")
                       .c_str())
                  .at("tool_calls"),
              OrderedJson::parse(R"([{"type": "function", "function": {"name": "f", "arguments": {}}}])"));
  }
  EXPECT_EQ(Read(R"({"role": "tool", "content": "4", "tool_call_id": "1", "name": "f"})"),
            OrderedJson::parse(R"({"role": "tool", "content": "4", "tool_call_id": "1", "name": "f"})"));
}

TEST(ChatMessage, HasTheDecimalNumbersOfArgumentsAsDoubles) {
  const ChatMessage message = Read(
      R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{\"x\": 3.14159265358979312345, \"v\": 100000000000000000.0}"}]})");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], OrderedJson({{"x", 3.141592653589793}, {"v", 1e17}}));
}

TEST(ChatMessage, ThatIsLongIsNotCutInsideOfACharacterInAnError) {
  std::string content = "a";
  for (int i = 0; i < 200; ++i) content += "\u00e9";
  for (const std::string pad : {"", "b"}) {
    const OrderedJson message = {{"role", "user"}, {"content", {pad + content}}};
    const std::string error = Error(message.dump().c_str());
    EXPECT_THAT(error, HasSubstr("\u00e9... ("));
    EXPECT_NO_THROW((void)OrderedJson(error).dump()) << "it is no UTF-8";
  }
}

TEST(ChatMessage, ThatIsNotWellFormedIsNamedWithItsValueAndWhatIsAllowed) {
  EXPECT_EQ(Error("7"), R"(m is 7; allowed: {"role": ..., "content": ...})");
  EXPECT_THAT(Error(R"({"content": "a"})"), HasSubstr("a string as \"role\""));
  EXPECT_EQ(Error(R"({"role": "user", "content": 7})"),
            R"(m.content is 7; allowed: a string, or a list of {"type": "text", "text": ...})");
  EXPECT_THAT(Error(R"({"role": "user", "content": null})"), HasSubstr("allowed: a \"content\""));
  EXPECT_THAT(Error(R"({"role": "tool", "tool_calls": []})"), HasSubstr("allowed: a \"content\""));
  EXPECT_THAT(Error(R"({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]})"),
              HasSubstr("m.content[0] is {\"type\":\"image_url\""));
  EXPECT_EQ(Error(R"({"role": "user", "content": "a", "weight": 0})"),
            "m.weight is not known, and would not be read; allowed: role, content, reasoning_content, tool_calls, "
            "tool_call_id, name");
  EXPECT_THAT(Error(R"({"role": "user", "content": "a", "reasoning_content": "b"})"),
              HasSubstr("m.reasoning_content is \"b\"; allowed: thoughts of the assistant alone"));
  const auto call_error = [](const std::string& calls) {
    return Error(("{\"role\": \"assistant\", \"tool_calls\": " + calls + "}").c_str());
  };
  EXPECT_EQ(call_error("1"), "m.tool_calls is 1; allowed: a list of calls");
  EXPECT_THAT(call_error("[1]"), HasSubstr("m.tool_calls[0] is 1; allowed: {"));
  EXPECT_THAT(call_error(R"([{"function": {"arguments": {}}}])"), HasSubstr("allowed: a string as \"name\""));
  EXPECT_EQ(call_error(R"([{"function": {"name": "f", "arguments": "[1]"}}])"),
            R"(m.tool_calls[0].function.arguments is "[1]"; allowed: an object, or the JSON text of one)");
  EXPECT_THAT(call_error(R"([{"function": {"name": "f", "arguments": "{"}}])"), HasSubstr("the JSON text of one"));
  EXPECT_EQ(
      call_error(R"([{"function": {"name": "f", "arguments": "{\"n\": 12345678901234567890123}"}}])"),
      "m.tool_calls[0].function.arguments is \"{\\\"n\\\": 12345678901234567890123}\"; allowed: an object, or the JSON "
      "text of one (m.tool_calls[0].function.arguments: not well-formed JSON at line 1, column 30: the whole number "
      "12345678901234567890123 is beyond 64 bits)");
  EXPECT_EQ(call_error(R"([{"type": "custom", "function": {"name": "f"}}])"),
            R"(m.tool_calls[0].type is "custom"; allowed: "function")");
  EXPECT_THAT(call_error(R"([{"function": {"name": "f", "args": {}}}])"),
              HasSubstr("m.tool_calls[0].function.args is not known"));
  EXPECT_THAT(Error(R"({"role": "user", "content": "a", "tool_calls": [{"name": "f"}]})"),
              HasSubstr("calls of the assistant alone"));
}

}  // namespace
}  // namespace quartet
