// What the loop does with rewards of single tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/rl/testing/token_arrays.h"
#include "core/safetensors/reader.h"
#include "orchestrator/loop/testing/ppo_test_base.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// 4 prompts times 2 samples of three tokens: the first is worth 0.25 and 0.75 at the first and the last token, the
// second -0.5 and 0.5 at the first two.
class PpoTokenRewardsTest : public PpoTest {
 protected:
  PpoTokenRewardsTest() { Give({0.25, 0, 0.75}, {-0.5, 0.5, 0}); }
  void Give(const std::vector<float>& first, const std::vector<float>& second) {
    services_.spoil_score = [=](ScoreReply* reply) {
      const std::vector<float>& rewards = reply->index() % 2 == 0 ? first : second;
      reply->mutable_token_rewards()->Assign(rewards.begin(), rewards.end());
    };
  }
  RunConfig Config(const std::string& estimator, std::vector<std::string> overrides) {
    RunConfig config = services_.MakeConfig(scratch_.path(), 1);
    config.clear_algorithm();
    config.clear_critic();
    config.clear_reference();
    config.clear_reward();
    config.mutable_rollout()->clear_over_sampling_batch_size();
    config.mutable_train()->clear_critic_train_batch_size();
    overrides.insert(overrides.end(), {"algorithm.kl.init_kl_coef=0", "algorithm.advantage_normalization=none",
                                       "algorithm.advantage_estimator=" + estimator, "reward.source.0.command=judge",
                                       "reward.source.0.name=exact_match", "reward.source.0.token_rewards=true"});
    absl::Status status = ApplyOverrides(overrides, &config);
    EXPECT_TRUE(status.ok()) << status;
    RunConfig written;
    for (const std::string& override : overrides) ApplyOverrides({override}, &written).IgnoreError();
    status = ResolveRunConfig(&config, "", Program::kPpo, written);
    EXPECT_TRUE(status.ok()) << status;
    return config;
  }
  // The advantages of an answer of each kind, which all of the kind have, the better kind's first.
  std::vector<std::vector<float>> AdvantagesOfBoth() {
    std::map<std::vector<float>, int> kinds;
    const auto batches = services_.policy_batches();
    for (const TrainingSequence& sequence : batches.at(0)) {
      const auto& values = ArrayOf(sequence, kAdvantages);
      ++kinds[{values.begin(), values.end()}];
    }
    std::vector<std::vector<float>> advantages;
    for (const auto& [values, count] : kinds) {
      EXPECT_EQ(count, 4);
      advantages.push_back(values);
    }
    EXPECT_EQ(advantages.size(), 2);
    std::ranges::reverse(advantages);
    return advantages;
  }
};

TEST_F(PpoTokenRewardsTest, AreTheRewardsToGoOfTheirTokens) {
  const absl::Status status = Run(Config("reinforce_plus_plus", {"algorithm.gamma=0.5"})).status();
  ASSERT_TRUE(status.ok()) << status;
  const auto advantages = AdvantagesOfBoth();
  EXPECT_THAT(advantages.at(0), ElementsAre(0.25 + 0.75 / 4, 0.75 / 2, 0.75));
  EXPECT_THAT(advantages.at(1), ElementsAre(-0.5 + 0.5 / 2, 0.5, 0));
  const auto metrics = Lines("run/metrics.jsonl").at(0);
  EXPECT_EQ(metrics.at("reward/mean"), 0.5) << "of the sums";
  EXPECT_EQ(metrics.at("token_rewards/before_last"), 1);
  const auto sample = Lines("run/samples.jsonl").at(0);
  EXPECT_EQ(sample.at("token_rewards"), nlohmann::json({0.25, 0, 0.75}));
  EXPECT_EQ(sample.at("token_texts").size(), 3);
  EXPECT_EQ(sample.at("token_texts").at(0), "o") << sample;
  EXPECT_EQ(metrics.at("reward/clipped"), 0);
}

TEST_F(PpoTokenRewardsTest, AreComparedWithTheCriticsValues) {
  const absl::Status status = Run(Config("gae", {"algorithm.gamma=0.5", "algorithm.lambd=0.5"})).status();
  ASSERT_TRUE(status.ok()) << status;
  // With a value of 0.5 of each state: delta is (0, -0.25, 0.25) and (-0.75, 0.25, -0.5).
  const auto advantages = AdvantagesOfBoth();
  EXPECT_THAT(advantages.at(0), ElementsAre(-0.25 / 4 + 0.25 / 16, -0.25 + 0.25 / 4, 0.25));
  EXPECT_THAT(advantages.at(1), ElementsAre(-0.75 + (0.25 - 0.5 / 4) / 4, 0.25 - 0.5 / 4, -0.5));
}

TEST_F(PpoTokenRewardsTest, AreClampedOneByOneAndPunishedForLengthAtTheLast) {
  // Three tokens are one above 4 - 2.
  const absl::Status status =
      Run(Config("reinforce", {"algorithm.reward_clip_max=0.4", "algorithm.overlong_buffer_len=2",
                               "rollout.generate_max_len=4", "train.keep_batches=1"}))
          .status();
  ASSERT_TRUE(status.ok()) << status;
  const auto advantages = AdvantagesOfBoth();
  EXPECT_THAT(advantages.at(0), ElementsAre(0.5, 0.25, 0.25));
  EXPECT_THAT(advantages.at(1), Pointwise(FloatNear(1e-6), {-0.6, -0.1, -0.5}));
  const auto metrics = Lines("run/metrics.jsonl").at(0);
  EXPECT_EQ(metrics.at("reward/mean"), 0) << "before they are clamped";
  EXPECT_EQ(metrics.at("reward/clipped"), 0.5);
  const auto batch = CheckpointReader::OpenFile(scratch_.path() + "/run/batches/step_1.safetensors");
  ASSERT_TRUE(batch.ok()) << batch.status();
  const auto& kept = (*batch)->tensors().at("token_rewards");
  EXPECT_THAT(kept.shape, ElementsAre(24));
}

TEST_F(PpoTokenRewardsTest, AreToldOfWhereNoTokenHasAny) {
  services_.spoil_score = [](ScoreReply* reply) {
    const float rewards[] = {0, 0, 0};
    reply->mutable_token_rewards()->Assign(std::begin(rewards), std::end(rewards));
    reply->set_reward(0);
  };
  RunConfig config = Config("gae", {});
  config.mutable_train()->set_max_steps(6);
  const absl::Status status = Run(config).status();
  ASSERT_TRUE(status.ok()) << status;
  std::vector<std::string> warnings;
  for (const nlohmann::json& event : Lines("run/events.jsonl")) warnings.push_back(event["text"]);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("last 5 steps: all rewards were equal (0)")));
  EXPECT_EQ(Lines("run/metrics.jsonl").back()["token_rewards/before_last"], 0);
}

TEST_F(PpoTokenRewardsTest, OfAnotherNumberOfTokensEndTheRun) {
  Give({0.25, 0.75}, {0, 0, 0});
  EXPECT_THAT(std::string(Run(Config("reinforce", {})).status().message()),
              HasSubstr("rewards of 2 tokens to an answer of 3"));
}

class TokenRewardsByAProgram : public PpoTokenRewardsTest {
 protected:
  RunConfig By(const std::string& program, const std::vector<std::string>& more = {}) {
    std::vector<std::string> overrides = {"algorithm.advantage_command.command=" + program};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return Config("command", overrides);
  }
};

TEST_F(TokenRewardsByAProgram, AreToldToIt) {
  scratch_.Write("adv.py",
                 "import json, sys\nfor line in sys.stdin:\n    answers = json.loads(line)['answers']\n"
                 "    said = [[r + 10 * a['reward'] for r in a['token_rewards']] for a in answers]\n"
                 "    print(json.dumps({'advantages': said}), flush=True)\n");
  const absl::Status status =
      Run(By("python3 " + scratch_.path() + "/adv.py", {"algorithm.reward_clip_max=0.5"})).status();
  ASSERT_TRUE(status.ok()) << status;
  const auto advantages = AdvantagesOfBoth();
  EXPECT_THAT(advantages.at(0), ElementsAre(7.75, 7.5, 8)) << "each clamped, and the reward their sum";
  EXPECT_THAT(advantages.at(1), ElementsAre(-0.5, 0.5, 0));
}

// Steps' rewards 0.25, 0.75, -0.5 and 0.5 are 0.25 on average, and their deviation is the root of 0.875 / 3.
TEST_F(TokenRewardsByAProgram, AreThoseOfProcessSupervisionByItsExample) {
  const absl::Status status = Run(By("python3 examples/advantages/process_grpo.py")).status();
  ASSERT_TRUE(status.ok()) << status;
  const float scale = 1 / std::sqrt(0.875f / 3);
  const auto advantages = AdvantagesOfBoth();
  EXPECT_THAT(advantages.at(0), Pointwise(FloatNear(1e-6f), {0.5f * scale, 0.5f * scale, 0.5f * scale}));
  EXPECT_THAT(advantages.at(1), Pointwise(FloatNear(1e-6f), {-0.5f * scale, 0.25f * scale, 0.f}));
}

TEST_F(TokenRewardsByAProgram, OfTheLastTokensAloneAreGrposByThatExample) {
  Give({0, 0, 1}, {0, 0, 0});
  ASSERT_TRUE(Run(By("python3 examples/advantages/process_grpo.py")).ok());
  const auto advantages = AdvantagesOfBoth();
  const float one = std::sqrt(0.5f);
  EXPECT_THAT(advantages.at(0), Pointwise(FloatNear(1e-6f), {one, one, one}));
  EXPECT_THAT(advantages.at(1), Pointwise(FloatNear(1e-6f), {-one, -one, -one}));
}

}  // namespace
}  // namespace quartet
