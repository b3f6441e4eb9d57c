#include "orchestrator/run_folder/checkpoint_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "orchestrator/testing/scratch_folder.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

TEST(CheckpointRecord, IsReadAsItWasWritten) {
  const ScratchFolder scratch;
  CheckpointRecord record;
  record.step = 4;
  record.kl_coefficient = 0.1234567890123456;
  record.seed = ~uint64_t{0};
  record.rollout_batch_size = 16;
  record.prompts_hash = 0xfedcba9876543210;
  record.policy = SavedTrainer{.manifest_hash = 0x0123456789abcdef, .optimizer_steps = 12};
  record.critic = SavedTrainer{.manifest_hash = 5, .optimizer_steps = 11};
  record.metrics.Set("policy/loss", -0.1);
  record.metrics.Set("policy/grad_norm", NAN);
  record.metrics.Set("tokens/generated", 123456);
  record.has_evaluation = true;
  ASSERT_TRUE(WriteCheckpointRecord(scratch.path(), record).ok());
  const auto read = ReadCheckpointRecord(scratch.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 4);
  EXPECT_EQ(read->kl_coefficient, record.kl_coefficient);
  EXPECT_EQ(read->seed, record.seed);
  EXPECT_EQ(read->rollout_batch_size, 16);
  EXPECT_EQ(read->prompts_hash, record.prompts_hash);
  EXPECT_EQ(read->policy->manifest_hash, record.policy->manifest_hash);
  EXPECT_EQ(read->policy->optimizer_steps, 12);
  EXPECT_EQ(read->critic->optimizer_steps, 11);
  EXPECT_EQ(read->metrics.values().size(), 3);
  EXPECT_EQ(read->metrics.Get("policy/loss"), -0.1);
  EXPECT_TRUE(std::isnan(*read->metrics.Get("policy/grad_norm")));
  EXPECT_EQ(read->metrics.Get("tokens/generated"), 123456);
  EXPECT_TRUE(read->has_evaluation);
}

TEST(CheckpointRecord, RefusesWhatIsNoRecord) {
  const ScratchFolder scratch;
  EXPECT_EQ(ReadCheckpointRecord(scratch.path()).status().code(), absl::StatusCode::kNotFound);
  const std::string whole = R"("step": 4, "kl_coefficient": 0.1, "seed": 1, "rollout_batch_size": 2,
                               "prompts_hash": "12")";
  scratch.Write("checkpoint.json", "{" + whole + "}");
  EXPECT_TRUE(ReadCheckpointRecord(scratch.path()).ok());
  for (const std::string& text :
       {std::string("[]"), std::string("{}"), std::string("{\"step\": -1}"),
        std::string("{\"step\": 4, \"kl_coefficient\": 0.1, \"seed\": 1}"), "{" + whole + ", \"metrics\": []}",
        "{" + whole + ", \"metrics\": {\"policy/loss\": \"high\"}}"}) {
    scratch.Write("checkpoint.json", text);
    const absl::Status status = ReadCheckpointRecord(scratch.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(scratch.path() + "/checkpoint.json"));
  }
}

}  // namespace
}  // namespace quartet
