#include "orchestrator/checkpoint_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/zero/state_folder.h"
#include "orchestrator/fake_services.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A run with one whole checkpoint, of step 4.
class CheckpointRecordTest : public ::testing::Test {
 protected:
  CheckpointRecordTest() {
    folder_ = scratch_.path() + "/checkpoints/step_4";
    record_.step = 4;
    record_.kl_coefficient = 0.1234567890123456;
    record_.seed = ~uint64_t{0};
    record_.rollout_batch_size = 16;
    record_.prompts_hash = 0xfedcba9876543210;
    record_.policy = WriteState("policy_state", 12);
    record_.critic = WriteState("critic_state", 11);
    fs::create_symlink("step_4", scratch_.path() + "/checkpoints/latest");
  }

  SavedTrainer WriteState(const std::string& name, int64_t steps) {
    fs::create_directories(folder_ + "/" + name);
    StateManifest manifest;
    manifest.optimizer_steps = steps;
    return {WriteStateManifest(folder_ + "/" + name, manifest).value(), steps};
  }

  ScratchFolder scratch_;
  std::string folder_;
  CheckpointRecord record_;
};

TEST_F(CheckpointRecordTest, IsReadAsItWasWritten) {
  ASSERT_TRUE(WriteCheckpointRecord(folder_, record_).ok());
  const auto found = FindLatestCheckpoint(scratch_.path());
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  const CheckpointRecord& read = **found;
  EXPECT_EQ(read.step, 4);
  EXPECT_EQ(read.kl_coefficient, record_.kl_coefficient);
  EXPECT_EQ(read.seed, record_.seed);
  EXPECT_EQ(read.rollout_batch_size, 16);
  EXPECT_EQ(read.prompts_hash, record_.prompts_hash);
  EXPECT_EQ(read.policy->manifest_hash, record_.policy->manifest_hash);
  EXPECT_EQ(read.policy->optimizer_steps, 12);
  EXPECT_EQ(read.critic->optimizer_steps, 11);
}

TEST_F(CheckpointRecordTest, IsNothingWhereNoCheckpointWasFinished) {
  fs::remove(scratch_.path() + "/checkpoints/latest");
  const auto found = FindLatestCheckpoint(scratch_.path());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());
}

TEST_F(CheckpointRecordTest, RefusesAPolicyOfOneStepWithACriticOfAnother) {
  ASSERT_TRUE(WriteCheckpointRecord(folder_, record_).ok());
  WriteState("critic_state", 10);
  const absl::Status status = FindLatestCheckpoint(scratch_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("critic_state"), HasSubstr("another checkpoint")));
}

TEST_F(CheckpointRecordTest, RefusesToGoOnWithoutTrainingStates) {
  record_.policy.reset();
  record_.critic.reset();
  ASSERT_TRUE(WriteCheckpointRecord(folder_, record_).ok());
  const absl::Status status = FindLatestCheckpoint(scratch_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("train.save_optimizer"));
}

TEST_F(CheckpointRecordTest, RefusesWhatIsNoRecord) {
  EXPECT_EQ(ReadCheckpointRecord(folder_).status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"[]", "{}", "{\"step\": -1}", "{\"step\": 4, \"kl_coefficient\": 0.1, \"seed\": 1}"}) {
    scratch_.Write("checkpoints/step_4/checkpoint.json", text);
    const absl::Status status = ReadCheckpointRecord(folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + "/checkpoint.json"));
  }
}

}  // namespace
}  // namespace quartet
