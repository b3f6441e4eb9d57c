#include "core/run_folder/checkpoints/checkpoint_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/base/testing/scratch_folder.h"

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
  record.prompts_drawn = 512;
  record.models["policy"]["config.json"] = {.bytes = 12, .hash = 0xfedcba9876543211};
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
  EXPECT_EQ(read->prompts_drawn, 512);
  EXPECT_EQ(read->models, record.models);
  EXPECT_TRUE(read->has_own_hash);
}

TEST(CheckpointRecord, KnowsOfEachByteWhetherItWasAltered) {
  const ScratchFolder scratch;
  CheckpointRecord record;
  record.step = 4;
  record.rollout_batch_size = 16;
  record.prompts_drawn = 512;
  ASSERT_TRUE(WriteCheckpointRecord(scratch.path(), record).ok());
  const std::string text = scratch.Read("checkpoint.json");
  for (size_t at = 0; at < text.size(); ++at) {
    for (const int flip : {1, 4}) {
      std::string altered = text;
      altered[at] = static_cast<char>(altered[at] ^ flip);
      scratch.Write("checkpoint.json", altered);
      EXPECT_FALSE(ReadCheckpointRecord(scratch.path()).ok()) << altered;
    }
  }
  for (size_t size = 0; size < text.size(); ++size) {
    scratch.Write("checkpoint.json", text.substr(0, size));
    EXPECT_FALSE(ReadCheckpointRecord(scratch.path()).ok()) << size;
  }
}

TEST(CheckpointRecord, RefusesWhatIsNoRecord) {
  const ScratchFolder scratch;
  EXPECT_EQ(ReadCheckpointRecord(scratch.path()).status().code(), absl::StatusCode::kNotFound);
  const std::string whole = R"("step": 4, "kl_coefficient": 0.1, "seed": 1, "rollout_batch_size": 2,
                               "prompts_hash": "0000000000000012")";
  scratch.Write("checkpoint.json", "{" + whole + "}");
  const auto without_hash = ReadCheckpointRecord(scratch.path());
  ASSERT_TRUE(without_hash.ok()) << without_hash.status();
  EXPECT_FALSE(without_hash->has_own_hash);
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

TEST(CheckpointRecord, NamesTheFieldThatIsNotWhatItMayBe) {
  const ScratchFolder scratch;
  const auto error = [&](const std::string& step, const std::string& coefficient, const std::string& more) {
    scratch.Write("checkpoint.json",
                  "{\"step\": " + step + ", \"kl_coefficient\": " + coefficient +
                      ", \"seed\": 1, \"rollout_batch_size\": 2, \"prompts_hash\": \"0000000000000012\"" + more + "}");
    return std::string(ReadCheckpointRecord(scratch.path()).status().message());
  };
  EXPECT_EQ(error("4", "0.1", ", \"prompts_drawn\": 4"), "");
  EXPECT_THAT(error("0", "0.1", ""), HasSubstr("step is 0; it must be a whole number of 1 to 9007199254740992"));
  EXPECT_THAT(error("4", "-5", ""), HasSubstr("kl_coefficient is -5; it must be a number of at least 0"));
  EXPECT_THAT(error("4", "\"x\"", ""), HasSubstr("kl_coefficient is "));
  for (const std::string drawn : {"-5", "0", "3", "4611686018427387904", "8.5", "null"}) {
    EXPECT_THAT(error("4", "0.1", ", \"prompts_drawn\": " + drawn), HasSubstr("prompts_drawn is " + drawn + ";"));
  }
  EXPECT_THAT(
      error("4", "0.1", ", \"policy_state\": {\"manifest_hash\": \"0000000000000001\", \"optimizer_steps\": -1}"),
      HasSubstr("optimizer_steps is -1;"));
  EXPECT_THAT(error("4", "0.1", ", \"policy_state\": {\"manifest_hash\": \"0000000000000001\"}"),
              HasSubstr("optimizer_steps is missing"));
  EXPECT_THAT(error("4", "0.1", ", \"policy_state\": {\"manifest_hash\": \"0x1\", \"optimizer_steps\": 1}"),
              HasSubstr("manifest_hash is \"0x1\"; it must be a hash, 16 hexadecimal digits"));
  EXPECT_THAT(error("4", "0.1", ", \"has_evaluation\": 1"), HasSubstr("has_evaluation is 1;"));
  EXPECT_THAT(error("4", "0.1", ", \"hash\": \"12\""), HasSubstr("\"hash\" is "));
}

TEST(CheckpointRecord, HoldsTheHashesOfTheModels) {
  const ScratchFolder scratch;
  scratch.Write("step_4/policy/model.safetensors", "weights");
  scratch.Write("step_4/policy_ema/model.safetensors", "average");
  CheckpointRecord record;
  record.step = 4;
  record.rollout_batch_size = 2;
  const std::string folder = scratch.path() + "/step_4";
  const auto models = HashModels(folder);
  ASSERT_TRUE(models.ok()) << models.status();
  record.models = *models;
  ASSERT_EQ(record.models.size(), 2);
  ASSERT_TRUE(WriteCheckpointRecord(folder, record).ok());
  EXPECT_TRUE(VerifySavedModel(folder + "/policy").ok());
  EXPECT_TRUE(VerifySavedModel(folder + "/policy/").ok());
  EXPECT_TRUE(VerifySavedModel(scratch.path()).ok());
  scratch.Write("step_4/policy/model.safetensors", "weighus");
  EXPECT_TRUE(VerifySavedModel(folder + "/policy_ema").ok());
  scratch.Write("step_4/policy_ema/model.safetensors", "averagf");
  EXPECT_EQ(VerifySavedModel(folder + "/policy_ema").code(), absl::StatusCode::kDataLoss);
  for (const std::string end : {"", "/"}) {
    const absl::Status status = VerifySavedModel(folder + "/policy" + end);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("/step_4/policy/model.safetensors"));
  }
  std::filesystem::create_symlink(folder + "/policy", scratch.path() + "/link");
  EXPECT_EQ(VerifySavedModel(scratch.path() + "/link").code(), absl::StatusCode::kDataLoss);
  scratch.Write("step_4/checkpoint.json", "{");
  EXPECT_THAT(std::string(VerifySavedModel(folder + "/policy").message()), HasSubstr("/step_4/checkpoint.json"));
}

}  // namespace
}  // namespace quartet
