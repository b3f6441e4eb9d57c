// A chat that somebody else than its template makes the prompt of.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/openai/api_error.h"
#include "core/openai/openai_request.h"
#include "core/openai/testing/chat_models.h"
#include "core/openai/testing/openai_requests.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Body(json more) {
  more.emplace("messages", json::array({{{"role", "user"}, {"content", "hi"}}}));
  return more;
}

TEST(OpenAiChat, HasWhatAPromptIsMadeOf) {
  const auto chat =
      ReadOpenAiChat(Body({{"max_completion_tokens", 3}, {"stop", "sat"}, {"stream", true}}).dump(), Model(), kSeed);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_THAT(chat->messages, ElementsAre(MakeChatMessage("user", "hi")));
  EXPECT_EQ(chat->kwargs, json::object());
  EXPECT_FALSE(chat->has_tools);
  EXPECT_EQ(chat->max_tokens, 3);
  EXPECT_TRUE(chat->request.stream);
  EXPECT_THAT(chat->named, ElementsAre("max_completion_tokens", "messages", "stop", "stream"));

  const auto request = WithPrompt(*chat, "anything", {1, 2, 3}, Model());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompts.at(0).ids(), ElementsAre(1, 2, 3));
  EXPECT_EQ(request->header.num_items(), 1);
  EXPECT_EQ(request->header.sampling().max_new_tokens(), 3);
  EXPECT_THAT(request->header.sampling().stop(), ElementsAre("sat"));
}

TEST(OpenAiChat, IsHeldAgainstTheLengthOfItsPrompt) {
  const auto chat = ReadOpenAiChat(Body({{"max_tokens", 3}}).dump(), Model(), kSeed);
  EXPECT_EQ(WithPrompt(*chat, "", std::vector<int32_t>(61, 1), Model())->header.sampling().max_new_tokens(), 3);
  EXPECT_THAT(WithPrompt(*chat, "", std::vector<int32_t>(62, 1), Model()).status().message(),
              HasSubstr("max_tokens is 3; allowed: 1 to 2, since messages has 62 tokens"));
  const json error =
      json::parse(ErrorBody(WithPrompt(*chat, "", std::vector<int32_t>(64, 1), Model()).status())).at("error");
  EXPECT_EQ(error.at("param"), "messages");
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
}

TEST(OpenAiChat, ReadsItsAnswerAsThePromptBeginsIt) {
  const auto tokenizer = LoadChatModel("qwen");
  const ServedModel model = ServedChatModel(*tokenizer);
  const json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const auto chat = ReadOpenAiChat(Body({{"tools", json::array({tool})}}).dump(), model, kSeed);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_TRUE(chat->has_tools);
  EXPECT_EQ(json(chat->kwargs.at("tools")), json::array({tool}));
  EXPECT_FALSE(WithPrompt(*chat, "assistant\n", {1}, model)->form.in_thought);
  const auto thinks = WithPrompt(*chat, "assistant\n<think>\n", {1}, model);
  EXPECT_TRUE(thinks->form.in_thought);
  EXPECT_NE(thinks->form.calls, nullptr);
}

TEST(OpenAiChat, NamesTheParameterThatItCannotBeWrittenFor) {
  const auto tokenizer = LoadChatModel(
      "qwen", {}, true, "{% if tools and tools|length > 1 %}{{ raise_exception('one tool') }}{% endif %}");
  const ServedModel model = ServedChatModel(*tokenizer);
  const json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const auto chat = ReadOpenAiChat(Body({{"tools", json::array({tool, tool})}}).dump(), model, kSeed);
  ASSERT_TRUE(chat.ok()) << chat.status();
  const absl::Status error = tokenizer->ApplyChatTemplate(chat->messages, true, chat->kwargs).status();
  EXPECT_THAT(ChatError(*chat, *tokenizer, error).message(), HasSubstr("tools cannot be used: "));
  // What the template writes, and the tokenizer does not take.
  const auto taken = ReadOpenAiChat(Body({{"tools", json::array({tool})}}).dump(), model, kSeed);
  EXPECT_EQ(ChatError(*taken, *tokenizer, absl::InvalidArgumentError("/models/x/tokenizer.json: too long")).message(),
            "messages cannot be read: tokenizer.json: too long");
}

}  // namespace
}  // namespace quartet
