#include "orchestrator/data/sft_examples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/byte_tokenizer.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Ids = std::vector<int32_t>;
using Mask = std::vector<bool>;

Ids IdsOf(const TokenSequence& example) { return {example.ids().begin(), example.ids().end()}; }
Mask MaskOf(const TokenSequence& example) { return {example.action_mask().begin(), example.action_mask().end()}; }

class SftExamplesTest : public ::testing::Test {
 protected:
  SftExamplesTest() {
    config_.mutable_data()->set_input_template("{}");
    config_.mutable_actor()->set_max_len(1000);
    config_.mutable_actor()->set_pretrain("/models/m");
    config_.mutable_sft()->set_input_key("prompt");
    config_.mutable_sft()->set_output_key("response");
  }

  absl::StatusOr<std::vector<TokenSequence>> Load(const std::string& lines, const Tokenizer& tokenizer,
                                                  const std::vector<int64_t>& model_end_ids) {
    config_.mutable_sft()->clear_data();
    config_.mutable_sft()->add_data(scratch_.Write("sft.jsonl", lines));
    const auto examples = OpenSftExamples(config_, tokenizer, model_end_ids);
    if (!examples.ok()) return examples.status();
    return (*examples)->Take(0, (*examples)->rows().rows());
  }
  // With a tokenizer of bytes.
  absl::StatusOr<std::vector<TokenSequence>> Load(const std::string& lines) {
    return Load(lines, ByteTokenizer(), {ByteTokenizer::kEnd});
  }
  std::string Error(const std::string& lines) { return std::string(Load(lines).status().message()); }

  // The text of an example of bytes, what is trained on between < and >.
  static std::string Shown(const TokenSequence& example) {
    std::string text;
    bool trained = false;
    for (int i = 0; i < example.ids_size(); ++i) {
      if (example.action_mask(i) != trained) text += trained ? ">" : "<";
      trained = example.action_mask(i);
      text += example.ids(i) == ByteTokenizer::kEnd ? '$' : static_cast<char>(example.ids(i));
    }
    return trained ? text + ">" : text;
  }

  ScratchFolder scratch_;
  RunConfig config_;
};

TEST_F(SftExamplesTest, TrainOnTheAnswerAndItsEndAlone) {
  const auto examples = Load("{\"prompt\": \"ab\", \"response\": \"x\"}\n{\"prompt\": \"abc\", \"response\": \"\"}\n");
  ASSERT_TRUE(examples.ok()) << examples.status();
  ASSERT_EQ(examples->size(), 2);
  EXPECT_EQ(IdsOf((*examples)[0]), (Ids{'a', 'b', 'x', ByteTokenizer::kEnd}));
  EXPECT_EQ(MaskOf((*examples)[0]), (Mask{false, false, true, true}));
  EXPECT_EQ(Shown((*examples)[1]), "abc<$>");
}

TEST_F(SftExamplesTest, EndInTheTokenThatTheOptionNamesUnlessTheyEndAlready) {
  const std::string line = "{\"prompt\": \"ab\", \"response\": \"xy\"}\n";
  const auto shown = [&](const std::string& end_token, const std::vector<int64_t>& model_end_ids) {
    config_.mutable_sft()->set_end_token(end_token);
    const auto examples = Load(line, ByteTokenizer(), model_end_ids);
    return examples.ok() ? Shown((*examples)[0]) : std::string(examples.status().message());
  };
  EXPECT_EQ(shown("!", {ByteTokenizer::kEnd}), "ab<xy!>");
  EXPECT_EQ(shown("y", {ByteTokenizer::kEnd}), "ab<xy>");
  EXPECT_EQ(shown("!", {ByteTokenizer::kEnd, 'y'}), "ab<xy>");
  EXPECT_EQ(shown("", {ByteTokenizer::kEnd}), "ab<xy>");
  EXPECT_EQ(shown("!", {}), "ab<xy!>");
  EXPECT_THAT(shown("no token", {}),
              HasSubstr("sft.end_token: \"no token\" is no token of the vocabulary of /models/m; allowed: "));
  config_.mutable_sft()->clear_end_token();
  EXPECT_THAT(
      std::string(Load(line, ByteTokenizer(), {}).status().message()),
      AllOf(HasSubstr("/models/m: the config.json of the model has no eos_token_id"), HasSubstr("sft.end_token")));
  EXPECT_EQ(Shown((*Load(line, ByteTokenizer(), {'!', '?'}))[0]), "ab<xy!>");
}

TEST_F(SftExamplesTest, GoThroughTheChatTemplateAsTwoMessages) {
  config_.mutable_data()->set_apply_chat_template(true);
  config_.mutable_data()->set_input_template("{}?");
  EXPECT_EQ(Shown((*Load("{\"prompt\": \"ab\", \"response\": \"xy\"}\n"))[0]), "[user]ab?[assistant]<xy$>");
}

TEST_F(SftExamplesTest, OfMessagesTakeTheLastOrTheAnswerBesideThem) {
  config_.mutable_data()->set_apply_chat_template(true);
  const std::string turns =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})";
  EXPECT_EQ(Shown((*Load(R"({"prompt": )" + turns + R"(, {"role": "assistant", "content": "d"}]})"))[0]),
            "[user]a[assistant]b[user]c[assistant]<d$>");
  EXPECT_EQ(Shown((*Load(R"({"prompt": )" + turns + R"(], "response": "e"})"))[0]),
            "[user]a[assistant]b[user]c[assistant]<e$>");
  EXPECT_EQ(Shown((*Load(R"({"prompt": )" + turns + R"(], "response": [{"role": "assistant", "content": "f"}]})"))[0]),
            "[user]a[assistant]b[user]c[assistant]<f$>");
  EXPECT_THAT(Error(R"({"prompt": )" + turns + R"(], "response": [{"role": "user", "content": "f"}]})"),
              HasSubstr("the last message of \"response\" (sft.output_key) is not the assistant's"));
  EXPECT_THAT(Error(R"({"prompt": )" + turns + "]}"), HasSubstr("sft.jsonl line 1: has no answer: "));
  EXPECT_THAT(
      Error(R"({"prompt": [{"role": "assistant", "content": "d"}], "response": "e"})"),
      HasSubstr("has two answers: the last message of \"prompt\" (sft.input_key) is the assistant's, and there is "
                "\"response\""));
}

std::string Said(const std::string& role, const std::string& content) {
  return json{{"role", role}, {"content", content}}.dump();
}

TEST_F(SftExamplesTest, ReadAPromptOnceThatStandsBesideTheWholeConversation) {
  config_.mutable_data()->set_apply_chat_template(true);
  const std::string whole =
      "[" + Said("system", "s") + "," + Said("user", "one") + "," + Said("assistant", "yes") + "]";
  const std::string messages = "[" + Said("system", "s") + "," + Said("user", "one") + "]";
  for (const bool multiturn : {false, true}) {
    config_.mutable_sft()->set_multiturn(multiturn);
    for (const std::string& prompt : {std::string(R"("one")"), std::string(R"(" one\n")"), messages}) {
      const auto examples = Load(R"({"prompt": )" + prompt + R"(, "response": )" + whole + "}");
      ASSERT_TRUE(examples.ok()) << examples.status();
      EXPECT_EQ(Shown(examples->front()), "[system]s[user]one[assistant]<yes$>");
    }
    EXPECT_THAT(Error(R"({"prompt": "two", "response": )" + whole + "}"),
                HasSubstr("sft.jsonl line 1: \"response\" (sft.output_key) is a whole conversation, which does not "
                          "have \"prompt\" (sft.input_key) before its last message"));
    EXPECT_THAT(Error(R"({"prompt": [)" + Said("user", "one") + R"(], "response": )" + whole + "}"),
                HasSubstr("which does not begin with the messages of \"prompt\" (sft.input_key)"));
  }
}

TEST_F(SftExamplesTest, BeginWithTheTokenOnceThatTheTokenizerPutsBeforeThem) {
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("core/tokenizer/testdata/llama_class").value();
  EXPECT_EQ(IdsOf(Load(R"({"prompt": "se", "response": "t<s>"})", *tokenizer, {2})->front()),
            (Ids{1, 12, 14, 10, 1, 2}));
  EXPECT_THAT(std::string(Load(R"({"prompt": "<s>se", "response": "t"})", *tokenizer, {2}).status().message()),
              HasSubstr("sft.jsonl line 1: the text begins with \"<s>\", which the tokenizer puts before every text"));
  EXPECT_THAT(
      std::string(Load(R"({"prompt": "se", "response": " <s>t"})", *tokenizer, {2}).status().message()),
      HasSubstr("sft.jsonl line 1: the answer begins with \"<s>\", which the tokenizer puts before every text"));
  // Where it ends texts, too, an answer may be nothing but its end.
  EXPECT_EQ(IdsOf(Load(R"({"prompt": "se", "response": "<s>"})", *tokenizer, {1})->front()), (Ids{1, 12, 14, 1}));
}

TEST_F(SftExamplesTest, OfMessagesHaveNoSecondTokenLikeThatWhichTheTemplateBeginsWith) {
  config_.mutable_data()->set_apply_chat_template(true);
  const std::string chat = scratch_.Write("chat.jinja", "<s>{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto tokenizer = Tokenizer::Load("core/tokenizer/testdata/llama_class", {.file = chat});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(IdsOf(Load(R"({"prompt": "se", "response": "t"})", **tokenizer, {2})->front()), (Ids{1, 12, 14, 10, 2}));
  const auto error = [&](const std::string& row) {
    return std::string(Load(row, **tokenizer, {2}).status().message());
  };
  EXPECT_THAT(error(R"({"prompt": "<s>se", "response": "t"})"),
              HasSubstr("sft.jsonl line 1: message 0 (counted from 0) begins with \"<s>\", which the chat template"));
  EXPECT_THAT(error(R"({"prompt": "se", "response": "<s>t"})"),
              HasSubstr("sft.jsonl line 1: message 1 (counted from 0) begins with \"<s>\", which the chat template"));
}

TEST_F(SftExamplesTest, OfMessagesHaveNoSuchTokenBeforeThoughts) {
  config_.mutable_data()->set_apply_chat_template(true);
  const std::string chat = scratch_.Write(
      "chat.jinja", "<s>{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}");
  const auto tokenizer = Tokenizer::Load("core/tokenizer/testdata/llama_class", {.file = chat});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto row = [](const std::string& thoughts) {
    return R"({"prompt": [{"role": "user", "content": "se"}], "response": [{"role": "assistant", "reasoning_content": ")" +
           thoughts + R"(", "content": "t"}]})";
  };
  EXPECT_TRUE(Load(row("s<s>e"), **tokenizer, {2}).ok());
  EXPECT_THAT(
      std::string(Load(row("<s>se"), **tokenizer, {2}).status().message()),
      HasSubstr("sft.jsonl line 1: reasoning_content of message 1 (counted from 0) begins with \"<s>\", which the "
                "chat template"));
}

TEST_F(SftExamplesTest, OfMessagesTakeTurns) {
  config_.mutable_data()->set_apply_chat_template(true);
  const std::string a = Said("user", "a"), b = Said("assistant", "b"), c = Said("assistant", "c");
  for (const bool multiturn : {false, true}) {
    config_.mutable_sft()->set_multiturn(multiturn);
    for (const std::string& row :
         {R"({"prompt": [)" + a + "," + b + "," + c + "]}", R"({"prompt": "a", "response": [)" + b + "," + c + "]}"}) {
      EXPECT_THAT(Error(row), HasSubstr("line 1: messages 1 and 2 (counted from 0) of the conversation that ends in "))
          << row;
    }
    EXPECT_THAT(Error(R"({"prompt": [)" + a + "," + a + "," + b + "]}"),
                HasSubstr("messages 0 and 1 (counted from 0) of the conversation that ends in \"prompt\" "
                          "(sft.input_key) are both the user's"));
    EXPECT_THAT(Error(R"({"prompt": [)" + b + "]}"),
                HasSubstr("there is nothing before the answer in \"prompt\" (sft.input_key)"));
    const std::string system = Said("system", "s");
    EXPECT_TRUE(Load(R"({"prompt": [)" + system + "," + system + "," + a + "," + b + "]}").ok());
  }
}

TEST_F(SftExamplesTest, NameTheLineThatIsTooLongOrHasNothingToLearn) {
  config_.mutable_actor()->set_max_len(6);
  EXPECT_THAT(Error("{\"prompt\": \"ab\", \"response\": \"x\"}\n{\"prompt\": \"abc\", \"response\": \"xyz\"}\n"),
              AllOf(HasSubstr("sft.data: "), HasSubstr("sft.jsonl line 2: "), HasSubstr("7 tokens"),
                    HasSubstr("actor.max_len (6)")));
  EXPECT_THAT(Error("{\"prompt\": \"\", \"response\": \"x\"}\n"), HasSubstr("line 1: the prompt has no token"));
  EXPECT_THAT(Error("{\"prompt\": \"a\", \"answer\": \"x\"}\n"),
              HasSubstr("line 1: has no field \"response\" (sft.output_key); it has: prompt, answer"));
  config_.mutable_sft()->set_end_token("");
  EXPECT_THAT(Error("{\"prompt\": \"a\", \"response\": \"\"}\n"), HasSubstr("line 1: the answer has no token"));
}

// Conversations with the tokens that transformers finds to be the assistant's, by tools/golden/make_conversations.py.
class ChatTest : public SftExamplesTest {
 protected:
  ChatTest() {
    config_.mutable_data()->set_apply_chat_template(true);
    config_.mutable_sft()->set_input_key("messages");
  }
  static std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& name, const std::string& chat_template) {
    auto tokenizer = Tokenizer::Load("core/tokenizer/testdata/" + name, {.file = chat_template});
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *std::move(tokenizer);
  }
  static constexpr int64_t kEnd = 2;  // <|end|> of all
};

TEST_F(ChatTest, HasTheIdsAndTheMaskOfTransformers) {
  std::ifstream file("orchestrator/data/testdata/conversations.json");
  const json rows = json::parse(file);
  ASSERT_GE(rows.size(), 12);
  for (const json& row : rows) {
    const auto tokenizer = LoadTokenizer(row[0], "orchestrator/data/testdata/" + row[1].get<std::string>() + ".jinja");
    for (const bool multiturn : {true, false}) {
      SCOPED_TRACE(row.dump() + (multiturn ? " multiturn" : ""));
      config_.mutable_sft()->set_multiturn(multiturn);
      const auto examples = Load(json{{"messages", row[2]}}.dump(), *tokenizer, {kEnd});
      ASSERT_TRUE(examples.ok()) << examples.status();
      EXPECT_EQ(IdsOf((*examples)[0]), row[3].get<Ids>());
      std::vector<int> mask((*examples)[0].action_mask().begin(), (*examples)[0].action_mask().end());
      EXPECT_EQ(mask, row[multiturn ? 4 : 5].get<std::vector<int>>());
    }
  }
}

constexpr char kConversation[] =
    R"({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"},
 {"role": "user", "content": "3"}, {"role": "assistant", "content": "4"}]})";

std::string OneLine(std::string text) {
  std::erase(text, '\n');
  return text;
}

TEST_F(ChatTest, RefusesTurnsThatReadOtherwiseOnceTheConversationGoesOn) {
  config_.mutable_sft()->set_multiturn(true);
  const auto error = [&](const std::string& tokenizer, const std::string& chat_template) {
    const absl::Status status = Load(OneLine(kConversation), *LoadTokenizer(tokenizer, chat_template), {kEnd}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::string how = "; without sft.multiturn the last of the assistant's messages alone is trained on";
  // Two newlines are one token at the end of a text, and two before the answer.
  EXPECT_THAT(error("byte_level", "orchestrator/data/testdata/brackets.jinja"),
              AllOf(HasSubstr("sft.jsonl line 1: data.apply_chat_template: the assistant's message 3 (counted from 0) "
                              "does not follow the turns before it as they would be trained on"),
                    HasSubstr(how)));
  // As templates do that leave out what was thought before.
  const std::string forgets = scratch_.Write(
      "forgets.jinja",
      "{% for m in messages %}{{ '<|start|>' ~ (m.content if loop.last or m.role == 'user' else '') ~ '<|end|>' }}"
      "{% endfor %}{{ '<|start|>' if add_generation_prompt }}");
  EXPECT_THAT(error("byte_level", forgets),
              AllOf(HasSubstr("message 3 (counted from 0) does not follow"), HasSubstr(how)));
  const std::string endless =
      scratch_.Write("endless.jinja",
                     "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\\n' }}{% endfor %}"
                     "{{ 'assistant: ' if add_generation_prompt }}");
  EXPECT_THAT(
      error("byte_level", endless),
      AllOf(HasSubstr("message 1 (counted from 0) is not ended by the template with an end token"), HasSubstr(how)));
  // What it says helps.
  config_.mutable_sft()->set_multiturn(false);
  for (const std::string& chat_template :
       {std::string("orchestrator/data/testdata/brackets.jinja"), forgets, endless}) {
    const auto examples = Load(OneLine(kConversation), *LoadTokenizer("byte_level", chat_template), {kEnd});
    ASSERT_TRUE(examples.ok()) << examples.status();
    EXPECT_EQ((*examples)[0].ids((*examples)[0].ids_size() - 1), kEnd);
  }
}

// As Qwen 3.5's does: turns are not rendered one by one.
TEST_F(ChatTest, NeedsNoPartOfAConversationThatATemplateWouldNotWrite) {
  config_.mutable_sft()->set_multiturn(true);
  const std::string chat_template = scratch_.Write(
      "strict.jinja",
      "{% set users = namespace(n=0) %}"
      "{% for m in messages %}{% if m.role == 'user' %}{% set users.n = users.n + 1 %}{% endif %}{% endfor %}"
      "{% if users.n == 0 %}{{ raise_exception('No user query found in messages.') }}{% endif %}"
      "{% for m in messages %}"
      "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must come first.') }}{% endif "
      "%}"
      "{{ '<|start|>' ~ m.content ~ '<|end|>' }}{% endfor %}{{ '<|start|>' if add_generation_prompt }}");
  const auto examples = Load(R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "1"}, )"
                             R"({"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}, )"
                             R"({"role": "assistant", "content": "4"}]})",
                             *LoadTokenizer("byte_level", chat_template), {kEnd});
  ASSERT_TRUE(examples.ok()) << examples.status();
  const auto& mask = (*examples)[0].action_mask();
  EXPECT_EQ(std::count(mask.begin(), mask.end(), true), 4) << "two answers of a token, each with its end";
}

TEST_F(ChatTest, RefusesATemplateThatDoesNotWriteTheAnswerBehindItsPrompt) {
  const std::string thinks =
      scratch_.Write("thinks.jinja",
                     "{% for m in messages %}{{ '<|start|>' ~ m.content ~ '<|end|>' }}{% endfor %}"
                     "{{ '<|start|><think>' if add_generation_prompt }}");
  EXPECT_THAT(
      std::string(Load(OneLine(kConversation), *LoadTokenizer("byte_level", thinks), {kEnd}).status().message()),
      HasSubstr("the assistant's message 3 (counted from 0) is not written behind the prompt that generation "
                "would have"));
}

TEST_F(ChatTest, SaysWhichOptionNamesATemplateWhereThereIsNone) {
  EXPECT_THAT(std::string(Load(OneLine(kConversation), *LoadTokenizer("characters", ""), {kEnd}).status().message()),
              AllOf(HasSubstr("line 1: data.apply_chat_template: the tokenizer has no chat template"),
                    HasSubstr("data.tokenizer_chat_template")));
}

}  // namespace
}  // namespace quartet
