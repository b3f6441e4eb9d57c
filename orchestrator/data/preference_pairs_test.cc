#include "orchestrator/data/preference_pairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/byte_tokenizer.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PreferencePairsTest : public ::testing::Test {
 protected:
  PreferencePairsTest() {
    config_.mutable_actor()->set_pretrain("/models/m");
    config_.mutable_actor()->set_max_len(40);
    config_.mutable_data()->set_shuffle(false);
    config_.mutable_preference();
    EXPECT_TRUE(ResolveRunConfig(&config_, "", Program::kDpo).ok());
  }
  absl::StatusOr<std::vector<PreferencePair>> Load(const std::string& lines, bool held_out = false) {
    PreferenceConfig* p = config_.mutable_preference();
    p->clear_data();
    p->clear_eval_data();
    (held_out ? p->mutable_eval_data() : p->mutable_data())->Add(scratch_.Write("pairs.jsonl", lines));
    const auto pairs = OpenPreferencePairs(config_, held_out, "actor", tokenizer_, {ByteTokenizer::kEnd});
    if (!pairs.ok()) return pairs.status();
    left_out_ = (*pairs)->rows().left_out();
    return (*pairs)->Take(0, (*pairs)->rows().rows());
  }
  std::string Error(const std::string& lines, bool held_out = false) {
    return std::string(Load(lines, held_out).status().message());
  }
  // The text of an example of bytes, what is learned between < and >.
  static std::string Shown(const TokenSequence& example) {
    std::string text;
    bool action = false;
    for (int i = 0; i < example.ids_size(); ++i) {
      if (example.action_mask(i) != action) text += action ? ">" : "<";
      action = example.action_mask(i);
      text += example.ids(i) == ByteTokenizer::kEnd ? '$' : static_cast<char>(example.ids(i));
    }
    return action ? text + ">" : text;
  }

  ScratchFolder scratch_;
  ByteTokenizer tokenizer_;
  RunConfig config_;
  LeftOut left_out_;
};

TEST_F(PreferencePairsTest, HaveTheSamePromptAndTwoAnswersThatAreEnded) {
  const auto pairs = Load("{\"prompt\": \"ab\", \"chosen\": \"xyz\", \"rejected\": \"w\"}\n");
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  ASSERT_EQ(pairs->size(), 1);
  EXPECT_EQ(Shown(pairs->front().chosen), "ab<xyz$>");
  EXPECT_EQ(Shown(pairs->front().rejected), "ab<w$>");
  EXPECT_EQ(pairs->front().margin, 0);
}

TEST_F(PreferencePairsTest, ReadOtherKeysMarginsAndInnerFields) {
  PreferenceConfig* p = config_.mutable_preference();
  p->set_input_key("question");
  p->set_chosen_key("answers.good");
  p->set_rejected_key("answers.bad");
  p->set_margin_key("gap");
  const auto pairs = Load("{\"question\": \"q\", \"answers\": {\"good\": \"g\", \"bad\": \"b\"}, \"gap\": 1.5}\n");
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ(Shown(pairs->front().chosen), "q<g$>");
  EXPECT_EQ(pairs->front().margin, 1.5f);
  EXPECT_THAT(Error("{\"question\": \"q\", \"answers\": {\"good\": \"g\", \"bad\": \"b\"}, \"gap\": \"wide\"}\n"),
              AllOf(HasSubstr("\"gap\" (preference.margin_key) is \"wide\""), HasSubstr("finite number")));
}

TEST_F(PreferencePairsTest, OfMessagesFollowThePromptOrAreWholeConversations) {
  config_.mutable_data()->set_apply_chat_template(true);
  const std::string user = "{\"role\": \"user\", \"content\": \"q\"}";
  const auto said = [](const std::string& text) { return "{\"role\": \"assistant\", \"content\": \"" + text + "\"}"; };
  const std::string with_prompt =
      "{\"prompt\": [" + user + "], \"chosen\": [" + said("x") + "], \"rejected\": \"y\"}\n";
  const std::string whole =
      "{\"chosen\": [" + user + "," + said("x") + "], \"rejected\": [" + user + "," + said("y") + "]}\n";
  for (const std::string& row : {with_prompt, whole}) {
    const auto pairs = Load(row);
    ASSERT_TRUE(pairs.ok()) << pairs.status();
    EXPECT_EQ(Shown(pairs->front().chosen), "[user]q[assistant]<x$>");
    EXPECT_EQ(Shown(pairs->front().rejected), "[user]q[assistant]<y$>");
  }
  EXPECT_THAT(Error("{\"chosen\": [" + user + "," + said("x") + "], \"rejected\": [" + user + "]}\n"),
              HasSubstr("the last message of \"rejected\" (preference.rejected_key) is not the assistant's"));
  EXPECT_THAT(Error("{\"chosen\": [" + said("a") + "," + user + "," + said("x") + "], \"rejected\": [" + said("b") +
                    "," + user + "," + said("y") + "]}\n"),
              HasSubstr("differ before their last messages"));
  EXPECT_THAT(Error("{\"chosen\": [" + said("x") + "], \"rejected\": [" + said("y") + "]}\n"),
              HasSubstr("there is nothing before the answer in \"chosen\""));
  EXPECT_THAT(Error("{\"prompt\": [" + said("x") + "], \"chosen\": \"x\", \"rejected\": \"y\"}\n"),
              HasSubstr("the last message of \"prompt\" (preference.input_key) is the assistant's"));
}

std::string PairMessage(const std::string& role, const std::string& content) {
  return R"({"role": ")" + role + R"(", "content": ")" + content + "\"}";
}

TEST_F(PreferencePairsTest, ReadAPromptOnceThatStandsBesideWholeConversations) {
  config_.mutable_data()->set_apply_chat_template(true);
  const std::string system = PairMessage("system", "s"), one = PairMessage("user", "one");
  const std::string answers = R"(, "chosen": [)" + system + "," + one + "," + PairMessage("assistant", "yes") +
                              R"(], "rejected": [)" + system + "," + one + "," + PairMessage("assistant", "no") +
                              "]}\n";
  for (const std::string& prompt : {std::string(R"("one")"), "[" + system + "," + one + "]"}) {
    const auto pairs = Load(R"({"prompt": )" + prompt + answers);
    ASSERT_TRUE(pairs.ok()) << pairs.status();
    EXPECT_EQ(Shown(pairs->front().chosen), "[system]s[user]one[assistant]<yes$>");
    EXPECT_EQ(Shown(pairs->front().rejected), "[system]s[user]one[assistant]<no$>");
  }
  EXPECT_THAT(Error(R"({"prompt": "two")" + answers),
              HasSubstr("pairs.jsonl line 1: \"chosen\" (preference.chosen_key) is a whole conversation, which does "
                        "not have \"prompt\" (preference.input_key) before its last message"));
  EXPECT_THAT(Error(R"({"prompt": [)" + one + "]" + answers),
              HasSubstr("which does not begin with the messages of \"prompt\" (preference.input_key)"));
}

TEST_F(PreferencePairsTest, AreToDifferForTheModel) {
  // The end token's own text.
  EXPECT_THAT(Error(R"({"prompt": "q", "chosen": "yes", "rejected": "yes\u0000"})"
                    "\n"),
              HasSubstr("are the same to the model: the same token ids"));
}

TEST_F(PreferencePairsTest, AreToDifferInTheirLastMessagesAlone) {
  config_.mutable_data()->set_apply_chat_template(true);
  const std::string user = PairMessage("user", "q"), more = PairMessage("user", "r"), x = PairMessage("assistant", "x"),
                    y = PairMessage("assistant", "y");
  const auto error = [this](const std::string& prompt, const std::string& chosen, const std::string& rejected) {
    return Error("{" + (prompt.empty() ? "" : "\"prompt\": " + prompt + ", ") + "\"chosen\": " + chosen +
                 ", \"rejected\": " + rejected + "}\n");
  };
  const auto list = [](const std::vector<std::string>& messages) {
    std::string text;
    for (const std::string& message : messages) text += (text.empty() ? "[" : ",") + message;
    return text + "]";
  };
  // With a prompt that is a text, with one of messages, and without.
  for (const std::string& prompt : {std::string(R"("q")"), list({user}), std::string()}) {
    SCOPED_TRACE(prompt);
    EXPECT_THAT(error(prompt, list({user, x}), list({user, x})), HasSubstr("are the same, which teaches nothing"));
    EXPECT_THAT(error(prompt, list({user, x, more, x}), list({user, y, more, y})),
                HasSubstr("differ before their last messages"));
    EXPECT_THAT(error(prompt, list({user, x}), list({user, x, more, y})),
                HasSubstr("differ before their last messages"));
    EXPECT_THAT(error(prompt, list({user, x, x}), list({user, x, y})),
                HasSubstr("messages 1 and 2 (counted from 0) of the conversation that ends in \"chosen\" "
                          "(preference.chosen_key) are both the assistant's"));
    EXPECT_THAT(error(prompt, list({user, more, x}), list({user, more, y})),
                HasSubstr("messages 0 and 1 (counted from 0) of the conversation that ends in \"chosen\" "
                          "(preference.chosen_key) are both the user's"));
    if (prompt.empty()) continue;
    EXPECT_THAT(error(prompt, R"("x")", R"("x")"), HasSubstr("are the same, which teaches nothing"));
    EXPECT_THAT(error(prompt, list({x, more, x}), list({y, more, y})),
                HasSubstr(prompt[0] == '[' ? "differ before their last messages" : "is a whole conversation"));
    EXPECT_THAT(error(prompt, list({x, x}), list({x, y})), HasSubstr("are both the assistant's"));
  }
  config_.mutable_data()->set_apply_chat_template(false);
  EXPECT_THAT(error(R"("q")", R"("x")", R"("x")"), HasSubstr("are the same, which teaches nothing"));
}

TEST_F(PreferencePairsTest, AreLeftOutWhereOneAnswerIsTooLong) {
  const auto pairs = Load("{\"prompt\": \"ab\", \"chosen\": \"x\", \"rejected\": \"" + std::string(50, 'y') +
                          "\"}\n{\"prompt\": \"ab\", \"chosen\": \"x\", \"rejected\": \"y\"}\n");
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ(pairs->size(), 1);
  EXPECT_EQ(left_out_.overlong, 1);
  EXPECT_THAT(std::string(left_out_.first_overlong.message()), HasSubstr("more than actor.max_len (40)"));
}

TEST_F(PreferencePairsTest, NameTheOptionFileAndRowThatIsWrong) {
  EXPECT_THAT(Error("{\"prompt\": \"ab\", \"chosen\": \"x\"}\n"),
              AllOf(HasSubstr("preference.data"), HasSubstr("\"rejected\" (preference.rejected_key)")));
  EXPECT_THAT(Error("{\"prompt\": \"ab\", \"rejected\": \"x\"}\n", /*held_out=*/true),
              AllOf(HasSubstr("preference.eval_data"), HasSubstr("\"chosen\" (preference.chosen_key)")));
  EXPECT_THAT(Error("{\"chosen\": \"x\", \"rejected\": \"y\"}\n"),
              AllOf(HasSubstr("\"prompt\" (preference.input_key)"), HasSubstr("must be a whole conversation")));
  config_.mutable_preference()->set_end_token("<stop>");
  EXPECT_THAT(Error("{}\n"), AllOf(HasSubstr("preference.end_token: \"<stop>\""), HasSubstr("/models/m")));
}

TEST_F(PreferencePairsTest, OfHeldOutFilesStayInTheirOrder) {
  config_.mutable_data()->set_shuffle(true);
  std::string lines;
  for (char c = 'a'; c < 'f'; ++c) {
    lines += std::string("{\"prompt\": \"p\", \"chosen\": \"") + c + "\", \"rejected\": \"z\"}\n";
  }
  const auto pairs = Load(lines, /*held_out=*/true);
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  std::vector<std::string> shown;
  for (const PreferencePair& pair : *pairs) shown.push_back(Shown(pair.chosen));
  EXPECT_THAT(shown, ElementsAre("p<a$>", "p<b$>", "p<c$>", "p<d$>", "p<e$>"));
}

}  // namespace
}  // namespace quartet
