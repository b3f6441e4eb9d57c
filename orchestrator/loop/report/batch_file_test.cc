#include "orchestrator/loop/report/batch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors/reader.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;

template <typename T>
std::vector<T> Read(const CheckpointReader& file, const std::string& name) {
  std::vector<T> values(file.tensors().at(name).numel());
  EXPECT_TRUE(file.ReadRange(name, 0, static_cast<int64_t>(values.size()), values.data()).ok()) << name;
  return values;
}

std::string OutputOf(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  for (int c = 0; (c = fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

TokenSequence Sequence(const std::vector<int>& context, const std::vector<int>& drawn) {
  TokenSequence tokens;
  for (const auto& [ids, action] : {std::pair(&context, false), std::pair(&drawn, true)}) {
    tokens.mutable_ids()->Add(ids->begin(), ids->end());
    tokens.mutable_action_mask()->Resize(tokens.ids_size(), action);
  }
  return tokens;
}

TEST(BatchFile, HasWhatAStepLearnsFrom) {
  std::vector<Experience> batch(2);
  batch[0].sequences = {Sequence({5, 6}, {7})};
  batch[1].sequences = {Sequence({5, 6}, {8, 9})};
  batch[0].rollout_log_probs = {-1};
  batch[1].rollout_log_probs = {-2, -3};
  batch[0].advantages = {0.5};
  batch[1].advantages = {-0.5, -0.25};
  batch[0].reward = 0.1;
  batch[1].truncated = true;

  const std::string path = testing::TempDir() + "/step_1.safetensors";
  ASSERT_TRUE(WriteBatch(batch, path).ok());
  const auto file = CheckpointReader::OpenFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(Read<int64_t>(**file, "token_offsets"), ElementsAre(0, 3, 7));
  EXPECT_THAT(Read<int64_t>(**file, "action_offsets"), ElementsAre(0, 1, 3));
  EXPECT_THAT(Read<int64_t>(**file, "sequence_offsets"), ElementsAre(0, 3, 7));
  EXPECT_THAT(Read<int32_t>(**file, "ids"), ElementsAre(5, 6, 7, 5, 6, 8, 9));
  EXPECT_THAT(Read<uint8_t>(**file, "action_mask"), ElementsAre(0, 0, 1, 0, 0, 1, 1));
  EXPECT_THAT(Read<uint8_t>(**file, "truncated"), ElementsAre(0, 1));
  EXPECT_THAT(Read<double>(**file, "reward"), ElementsAre(0.1, 0));
  EXPECT_THAT(Read<float>(**file, "rollout_log_probs"), ElementsAre(-1, -2, -3));
  EXPECT_THAT(Read<float>(**file, "advantages"), ElementsAre(0.5, -0.5, -0.25));
  EXPECT_FALSE((*file)->tensors().contains("values")) << "there is no critic";
  EXPECT_FALSE((*file)->tensors().contains("token_rewards")) << "no source gives such";

  batch[0].token_rewards = {0.1f};
  batch[1].token_rewards = {0.5f, -0.5f};
  ASSERT_TRUE(WriteBatch(batch, path).ok());
  const auto with = CheckpointReader::OpenFile(path);
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_THAT(Read<float>(**with, "token_rewards"), ElementsAre(0.1f, 0.5f, -0.5f));

  EXPECT_EQ(OutputOf("python3 examples/batches/read_batch.py " + path),
            "group 0: 3 tokens, 1 of them drawn, reward 0.1, mean advantage 0.5\n"
            "  rewards of tokens: 0: 0.1\n"
            "group 0: 4 tokens, 2 of them drawn, reward 0, mean advantage -0.375\n"
            "  rewards of tokens: 0: 0.5, 1: -0.5\n");
}

TEST(BatchFile, HasTheSequencesOfAnAnswerEndToEnd) {
  std::vector<Experience> batch(2);
  batch[0].sequences = {Sequence({5}, {6, 7}), Sequence({5, 6, 7, 1}, {8})};
  batch[1].sequences = {Sequence({5}, {9})};
  batch[0].rollout_log_probs = batch[0].advantages = {-1, -2, -3};
  batch[1].rollout_log_probs = batch[1].advantages = {-4};
  const std::string path = testing::TempDir() + "/episodes.safetensors";
  ASSERT_TRUE(WriteBatch(batch, path).ok());
  const auto file = CheckpointReader::OpenFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(Read<int64_t>(**file, "token_offsets"), ElementsAre(0, 8, 10));
  EXPECT_THAT(Read<int64_t>(**file, "sequence_offsets"), ElementsAre(0, 3, 8, 10));
  EXPECT_THAT(Read<int64_t>(**file, "action_offsets"), ElementsAre(0, 3, 4));
  EXPECT_THAT(Read<int32_t>(**file, "ids"), ElementsAre(5, 6, 7, 5, 6, 7, 1, 8, 5, 9));
  EXPECT_THAT(Read<uint8_t>(**file, "action_mask"), ElementsAre(0, 1, 1, 0, 0, 0, 0, 1, 0, 1));
  EXPECT_THAT(Read<float>(**file, "rollout_log_probs"), ElementsAre(-1, -2, -3, -4));
  EXPECT_EQ(OutputOf("python3 examples/batches/read_batch.py " + path),
            "group 0: 8 tokens in 2 sequences, 3 of them drawn, reward 0, mean advantage -2\n"
            "group 0: 2 tokens, 1 of them drawn, reward 0, mean advantage -4\n");
}

}  // namespace
}  // namespace quartet
