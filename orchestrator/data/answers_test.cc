#include "orchestrator/data/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/testing/byte_tokenizer.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;

TEST(ScoreItems, TellTheTextOfEachDrawnTokenWhereTokensMayHaveRewards) {
  GeneratedSequence answer;
  for (const int32_t id : {int32_t{'q'}, int32_t{'?'}, int32_t{'o'}, int32_t{'k'}, ByteTokenizer::kEnd}) {
    answer.mutable_tokens()->add_ids(id);
    answer.mutable_tokens()->add_action_mask(answer.tokens().ids_size() > 2 && id != 'k');  // 'k' is a tool's
  }
  PromptRecord prompt;
  prompt.text = "q?";
  const ByteTokenizer tokenizer;
  RewardConfig reward;
  reward.add_source()->set_command("judge");
  EXPECT_THAT(MakeScoreItem(0, answer, prompt, reward, tokenizer).token_texts(), ElementsAre());
  reward.mutable_source(0)->set_token_rewards(true);
  const ScoreItem item = MakeScoreItem(0, answer, prompt, reward, tokenizer);
  EXPECT_THAT(item.token_texts(),
              ElementsAre("o", tokenizer.Decode({ByteTokenizer::kEnd}, /*skip_special_tokens=*/false)));
  for (int i = 0; i < 5; ++i) answer.mutable_tokens()->set_action_mask(i, false);
  EXPECT_THAT(MakeScoreItem(0, answer, prompt, reward, tokenizer).token_texts(), ElementsAre());
}

}  // namespace
}  // namespace quartet
