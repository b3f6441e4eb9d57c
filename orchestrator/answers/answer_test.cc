#include "orchestrator/answers/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/clients/testing/byte_tokenizer.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;

TEST(Answer, IsNamedByItsPromptsRowWhereTheScorerFindsWhatIsWrong) {
  std::vector<PromptRecord> prompts(2);
  prompts[0].place = "data.prompt_data: a.jsonl line 1";
  prompts[1].place = "data.prompt_data: a.jsonl line 2";
  const auto named = [&](const std::string& message) {
    const absl::Status status = NameRow(absl::InvalidArgumentError(message),
                                        [&](uint64_t index) -> const PromptRecord& { return prompts.at(index / 4); });
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const std::string wrong = "scorer at h:1, Score: sequence 7, reward \"code\": the label is wrong";
  EXPECT_EQ(named(wrong), "data.prompt_data: a.jsonl line 2: " + wrong);
  for (const char* other : {"scorer at h:1: it broke", "sequence x, y", "sequence 7", "sequence , y"}) {
    EXPECT_EQ(named(other), other);
  }
}

// Sources "a" and "b", of which `gates` are gates, and what the scorer says of them.
struct Scored {
  RewardConfig config;
  ScoreReply reply;
};
Scored ScoredBy(bool a_is_gate, bool b_is_gate) {
  Scored scored;
  for (const bool gate : {a_is_gate, b_is_gate}) {
    RewardSource* source = scored.config.add_source();
    source->set_name(scored.config.source_size() == 1 ? "a" : "b");
    source->set_gate(gate);
  }
  return scored;
}

TEST(AnAgentsReward, IsAddedToTheSourcesAndMultipliedByGates) {
  auto [config, reply] = ScoredBy(false, true);
  (*reply.mutable_parts())["a"] = 2;
  (*reply.mutable_parts())["b"] = 0.5;
  (*reply.mutable_scores())["b"] = 0.25;
  reply.set_reward(1);   // 2 * 0.5
  reply.set_score(0.5);  // 2 * 0.25
  ASSERT_EQ(AddAgentReward(config, {.value = 4, .score = 8, .extra_logs = {{"calls", 3}}}, &reply), absl::OkStatus());
  EXPECT_EQ(reply.reward(), 3);
  EXPECT_EQ(reply.score(), 2.5);
  EXPECT_EQ(reply.parts().at("agent"), 4);
  EXPECT_EQ(reply.scores().at("agent"), 8);
  EXPECT_EQ(reply.extra_logs().at("agent/calls"), 3);
}

TEST(AnAgentsReward, IsAloneWhereNoSourceIsForThePrompt) {
  auto [config, reply] = ScoredBy(true, false);  // neither of which has spoken
  ASSERT_EQ(AddAgentReward(config, {.value = -1.5}, &reply), absl::OkStatus());
  EXPECT_EQ(reply.reward(), -1.5);
  EXPECT_EQ(reply.score(), -1.5);
  EXPECT_EQ(reply.parts().size(), 1);
  EXPECT_TRUE(reply.scores().empty());
}

TEST(AnAgentsReward, IsRefusedWhereNoNumberHoldsTheSum) {
  auto [config, reply] = ScoredBy(false, false);
  reply.set_reward(3e38F);
  EXPECT_TRUE(absl::IsOutOfRange(AddAgentReward(config, {.value = 3e38F}, &reply)));
}

TEST(ScoreItems, TellTheTextOfEachDrawnTokenWhereTokensMayHaveRewards) {
  TokenSequence answer;
  for (const int32_t id : {int32_t{'q'}, int32_t{'?'}, int32_t{'o'}, int32_t{'k'}, ByteTokenizer::kEnd}) {
    answer.add_ids(id);
    answer.add_action_mask(answer.ids_size() > 2 && id != 'k');  // 'k' is a tool's
  }
  const std::string response = "o", conversation = "[]";
  const JudgedAnswer judged = {answer, response, false, conversation};
  PromptRecord prompt;
  prompt.text = "q?";
  const ByteTokenizer tokenizer;
  RewardConfig reward;
  reward.add_source()->set_command("judge");
  EXPECT_THAT(MakeScoreItem(0, judged, prompt, reward, tokenizer).token_texts(), ElementsAre());
  reward.mutable_source(0)->set_token_rewards(true);
  EXPECT_EQ(MakeScoreItem(0, judged, prompt, reward, tokenizer).messages(), "[]");
  const ScoreItem item = MakeScoreItem(0, judged, prompt, reward, tokenizer);
  EXPECT_THAT(item.token_texts(),
              ElementsAre("o", tokenizer.Decode({ByteTokenizer::kEnd}, /*skip_special_tokens=*/false)));
  for (int i = 0; i < 5; ++i) answer.set_action_mask(i, false);
  EXPECT_THAT(MakeScoreItem(0, judged, prompt, reward, tokenizer).token_texts(), ElementsAre());
}

}  // namespace
}  // namespace quartet
