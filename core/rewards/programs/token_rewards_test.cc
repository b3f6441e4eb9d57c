// Programs that give each token a reward, as they are written for other frameworks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/rewards/programs/command.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The rewards of answers of three tokens and of two, by a function that examples/rewards/reward_func.py serves.
std::vector<absl::StatusOr<Reward>> OfTokensBy(const std::string& function, bool in_lists = true) {
  static int number = 0;
  const std::string file = testing::TempDir() + "/of_tokens" + std::to_string(number++) + ".py";
  std::ofstream(file) << function;
  const auto command = NewCommand({.command = "python3 examples/rewards/reward_func.py " + file,
                                   .timeout = absl::Seconds(60),
                                   .in_lists = in_lists,
                                   .token_rewards = true});
  if (!command.ok()) return {command.status(), command.status()};
  Answer three, two;
  three.token_ids = {5, 6, 7};
  three.token_texts = {"a", "b", "<end>"};
  two.token_ids = {6, 7};
  two.token_texts = {"b", "<end>"};
  for (Answer* answer : {&three, &two}) answer->tokens = std::ssize(answer->token_ids);
  const Answer* const both[] = {&three, &two};
  return (*command)->Score(both, {});
}

TEST(RewardFuncOfTokens, GivesThemWhereAListStandsInPlaceOfANumber) {
  for (const char* function : {
           "def reward_func(queries, prompts, labels, token_texts):\n"
           "    return {'rewards': [[float(t == 'b') for t in texts] for texts in token_texts]}\n",
           "def judge(prompts, completions, completion_ids, **_):\n"
           "    return [[float(i == 6) for i in ids] for ids in completion_ids]\n",
           "def compute_score(data_source, solution_str, ground_truth, token_ids, extra_info=None):\n"
           "    return {'score': [float(i == 6) for i in token_ids], 'acc': 1}\n",
       }) {
    for (const bool in_lists : {true, false}) {
      const auto rewards = OfTokensBy(function, in_lists);
      ASSERT_TRUE(rewards[0].ok() && rewards[1].ok()) << rewards[0].status() << rewards[1].status();
      EXPECT_THAT(rewards[0]->token_rewards, ElementsAre(0, 1, 0)) << function;
      EXPECT_THAT(rewards[1]->token_rewards, ElementsAre(1, 0)) << function;
      EXPECT_EQ(rewards[0]->value, 1);
    }
  }
}

TEST(RewardFuncOfTokens, TellsAFunctionThatTakesEverythingTheTokens) {
  for (const char* function : {
           "def reward_func(queries, prompts, labels, **kwargs):\n"
           "    return [[float(t == 'b') for t in texts] for texts in kwargs['token_texts']]\n",
           "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"
           "    return [float(t == 'b') for t in kwargs['token_texts']]\n",
       }) {
    const auto rewards = OfTokensBy(function);
    ASSERT_TRUE(rewards[0].ok() && rewards[1].ok()) << rewards[0].status() << rewards[1].status();
    EXPECT_THAT(rewards[0]->token_rewards, ElementsAre(0, 1, 0)) << function;
  }
}

TEST(RewardFuncOfTokens, TakesAListOfOneNumberForNothingElse) {
  const auto rewards = OfTokensBy("def reward_func(queries, prompts, labels):\n    return [[0.5], [0.5]]\n");
  EXPECT_THAT(std::string(rewards[0].status().message()), HasSubstr("has 1 numbers, and the answer has 3 tokens"));
}

TEST(RewardFuncOfTokens, MayGiveOneNumberToSomeAnswers) {
  const auto rewards = OfTokensBy("def reward_func(queries, prompts, labels):\n    return [3, [1, 2]]\n");
  ASSERT_TRUE(rewards[0].ok() && rewards[1].ok()) << rewards[0].status() << rewards[1].status();
  EXPECT_THAT(rewards[0]->token_rewards, ElementsAre());
  EXPECT_EQ(rewards[0]->value, 3);
  EXPECT_THAT(rewards[1]->token_rewards, ElementsAre(1, 2));
  EXPECT_EQ(rewards[1]->value, 3);
}

TEST(RewardFuncOfTokens, ThatAreNoNumbersOrTooFewAreErrorsOfTheAnswer) {
  const auto rewards = OfTokensBy("def reward_func(queries, prompts, labels):\n    return [[1, None, 2], [1, 2, 3]]\n");
  EXPECT_THAT(std::string(rewards[0].status().message()), HasSubstr("None"));
  EXPECT_THAT(std::string(rewards[1].status().message()), HasSubstr("has 3 numbers, and the answer has 2 tokens"));
}

// What examples/rewards/judge_steps.py gives the tokens of an answer to a question whose answer is 5.
std::vector<float> OfSteps(const std::vector<std::string>& token_texts) {
  const auto command = NewCommand({.command = "python3 examples/rewards/reward_func.py examples/rewards/judge_steps.py",
                                   .timeout = absl::Seconds(60),
                                   .token_rewards = true})
                           .value();
  Answer answer;
  answer.label = "5";
  answer.token_texts = token_texts;
  answer.token_ids.resize(token_texts.size());
  answer.tokens = std::ssize(token_texts);
  for (const std::string& text : token_texts) answer.response += text == "<end>" ? "" : text;
  const Answer* const one[] = {&answer};
  const absl::StatusOr<Reward> reward = std::move(command->Score(one, {})[0]);
  EXPECT_TRUE(reward.ok()) << reward.status();
  return reward.ok() ? reward->token_rewards : std::vector<float>();
}

TEST(JudgeOfSteps, GivesTheTokenThatEndsAStepItsReward) {
  EXPECT_THAT(OfSteps({"2", "+2", "=4", "\n", "4*3 = ", "10", ".\n\n", "So", " 5", "<end>"}),
              ElementsAre(0, 0, 0, 0.5, 0, 0, -0.5, 0, 0, 1));
  EXPECT_THAT(OfSteps({"1.5", "/3", "=0.5", "\n2-1=2\n", "6", "<end>"}), ElementsAre(0, 0, 0, 0, 0, 0))
      << "one token ends a right step and a wrong one";
  EXPECT_THAT(OfSteps({"10 -", " 5 = ", "5"}), ElementsAre(0, 0, 2)) << "cut off behind it";
  EXPECT_THAT(OfSteps({"no idea", "<end>"}), ElementsAre(0, 0));
}

}  // namespace
}  // namespace quartet
