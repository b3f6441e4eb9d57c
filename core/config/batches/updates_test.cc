#include "core/config/batches/updates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/files/files.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunConfig With(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"rollout.rollout_batch_size=10", "rollout.n_samples_per_prompt=2"});
  return LoadRunConfig("", overrides, "").value();
}

TEST(Updates, AreOneABatchUnlessTheConfigurationSaysMore) {
  const RunConfig config = With({});
  EXPECT_EQ(UpdatesPerBatch(config), 1);
  EXPECT_EQ(CriticUpdatesPerBatch(config), 1);
  EXPECT_EQ(config.train().train_batch_size(), 20);
}

TEST(Updates, AreCountedWhateverTheSizeOfTheBatch) {
  const RunConfig config = With({"train.updates_per_batch=8"});
  EXPECT_EQ(UpdatesPerBatch(config), 8);
  EXPECT_EQ(TrainBatchSize(config), 3);
  EXPECT_EQ(CriticUpdatesPerBatch(config), 8);
  EXPECT_EQ(CriticUpdatesPerBatch(With({"train.updates_per_batch=8", "train.critic_train_batch_size=7"})), 3);
  EXPECT_EQ(CriticUpdatesPerBatch(With({"train.critic_updates_per_batch=20"})), 20);
  EXPECT_EQ(LoadRunConfig("", {"train.updates_per_batch=200"}, "").status().message(),
            "train.updates_per_batch: 200 is not allowed; it must be at most rollout.rollout_batch_size * "
            "rollout.n_samples_per_prompt = 128 * 1 = 128");
  for (const char* wrong :
       {"train.updates_per_batch=0", "train.critic_updates_per_batch=0", "train.critic_updates_per_batch=129"}) {
    EXPECT_FALSE(LoadRunConfig("", {wrong}, "").ok()) << wrong;
  }
}

TEST(Updates, AreGivenByCountOrBySizeAndTheLastOneHolds) {
  const std::string file = ::testing::TempDir() + "/updates.textproto";
  ASSERT_TRUE(AtomicWriteFile(file, "train { updates_per_batch: 4 }\n").ok());
  EXPECT_EQ(UpdatesPerBatch(LoadRunConfig(file, {}, "").value()), 4);
  EXPECT_EQ(UpdatesPerBatch(LoadRunConfig(file, {"train.train_batch_size=64"}, "").value()), 2);
  ASSERT_TRUE(AtomicWriteFile(file, "train { updates_per_batch: 4 train_batch_size: 64 }\n").ok());
  EXPECT_THAT(std::string(LoadRunConfig(file, {}, "").status().message()), HasSubstr("train_batch_size"));
}

TEST(Updates, SayWhichClipsCanNotAct) {
  const std::string idle = DescribeUpdates(With({"algorithm.dual_clip=3"}));
  EXPECT_THAT(idle, HasSubstr("the policy 1 optimizer step a batch, of 20 answers; the critic 1 optimizer step"));
  EXPECT_THAT(idle, HasSubstr("no effect has algorithm.eps_clip, algorithm.dual_clip, algorithm.value_clip: "));
  // Each of these moves the weights away from what is compared with, or compares with something else.
  for (const char* acts : {"train.updates_per_batch=2", "algorithm.max_epochs=2", "train.train_batch_size=5"}) {
    EXPECT_THAT(DescribeUpdates(With({acts})), Not(HasSubstr("no effect"))) << acts;
  }
  EXPECT_THAT(DescribeUpdates(With({"algorithm.old_log_prob_source=rollout"})), HasSubstr("no effect has "
                                                                                          "algorithm.value_clip"));
  EXPECT_THAT(DescribeUpdates(With({"algorithm.advantage_estimator=rloo", "algorithm.policy_loss=reinforce"})),
              Not(HasSubstr("no effect")));
  EXPECT_EQ(DescribeUpdates(With({"train.updates_per_batch=4", "algorithm.max_epochs=2", "algorithm.critic_epochs=1"})),
            "the policy 4 optimizer steps a batch, of up to 5 answers, in each of 2 epochs; the critic 4 optimizer "
            "steps a batch, of up to 5 answers");
}

}  // namespace
}  // namespace quartet
