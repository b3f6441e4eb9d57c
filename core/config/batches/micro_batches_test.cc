#include "core/config/batches/micro_batches.h"

#include <gtest/gtest.h>

#include "core/config/run_config.h"

namespace quartet {
namespace {

const std::vector<std::string> kAll = {"rollout", "policy_trainer", "critic_trainer", "scorer"};

// Of sequences of up to 640 tokens.
std::string Described(std::vector<std::string> overrides, const std::vector<std::string>& services = kAll) {
  overrides.insert(overrides.begin(), {"data.prompt_max_len=512", "rollout.generate_max_len=128"});
  return DescribeMicroBatches(LoadRunConfig("", overrides, "").value(), services);
}

TEST(MicroBatches, AreToldOnceWhereAllModelsHaveTheSame) {
  constexpr char kSame[] =
      "up to 4,096 tokens (6 sequences of 640) a rank; set max_tokens_per_micro_batch or micro_train_batch_size of ";
  EXPECT_EQ(Described({}), std::string(kSame) + "actor and critic to change it");
  EXPECT_EQ(Described({"reward.source.0.model=/m"}), Described({}));
  EXPECT_EQ(Described({}, {"policy_trainer"}), std::string(kSame) + "actor to change it");
  EXPECT_EQ(Described({}, {"scorer"}), "up to 4,096 tokens (6 sequences of 640) a rank");
  EXPECT_EQ(Described({}, {"rollout"}), "");
}

TEST(MicroBatches, AreToldOfEachModelWhereTheyDiffer) {
  EXPECT_EQ(
      Described({"actor.micro_train_batch_size=4", "actor.micro_rollout_batch_size=1200"}),
      "policy 4 sequences, 1,200 without gradient, a rank, critic up to 4,096 tokens (6 sequences of 640) a rank, "
      "reference 1,200 sequences a rank; set max_tokens_per_micro_batch or micro_train_batch_size of critic to "
      "change it");
  EXPECT_EQ(Described({"actor.max_tokens_per_micro_batch=700", "critic.micro_train_batch_size=1"}),
            "policy and reference up to 700 tokens (1 sequence of 640) a rank, critic 1 sequence a rank");
  EXPECT_EQ(Described({"algorithm.kl.init_kl_coef=0", "reward.source.0.model=/m", "reward.micro_rollout_batch_size=2"},
                      {"scorer"}),
            "2 sequences a rank");
}

TEST(MicroBatches, HoldTheLongestSequenceWhateverItsLength) {
  RunConfig config;
  EXPECT_EQ(DefaultMicroBatchTokens(config, 640), 4096);
  EXPECT_EQ(DefaultMicroBatchTokens(config, 1234567), 1234567);
  config.mutable_preference()->add_data("pairs.jsonl");
  EXPECT_EQ(DefaultMicroBatchTokens(config, 640), 4096);
  EXPECT_EQ(DefaultMicroBatchTokens(config, 3000), 6000);
  EXPECT_EQ(DefaultMicroBatchTokens(config, 2000000000), 2147483647);
  EXPECT_EQ(Described({"actor.max_len=1234567"}, {"policy_trainer"}),
            "up to 1,234,567 tokens (1 sequence of 1,234,567) a rank; set max_tokens_per_micro_batch or "
            "micro_train_batch_size of actor to change it");
}

}  // namespace
}  // namespace quartet
