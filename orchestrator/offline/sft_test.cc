#include "orchestrator/offline/sft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/byte_tokenizer.h"
#include "core/clients/testing/fake_services.h"
#include "core/config/run_config.h"
#include "core/rl/testing/token_arrays.h"
#include "nlohmann/json.hpp"
#include "orchestrator/data/sft_examples.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class SftTest : public ::testing::Test {
 protected:
  SftTest() : config_(services_.MakeConfig(scratch_.path(), 1)) {
    services_.SetCheckpointRoot(scratch_.path() + "/run/checkpoints");
    config_.mutable_sft()->add_data(
        scratch_.Write("sft.jsonl",
                       "{\"prompt\": \"ab\", \"response\": \"x\"}\n{\"prompt\": \"abc\", \"response\": "
                       "\"xyz\"}\n{\"prompt\": \"a\", \"response\": \"xy\"}\n"));
    config_.mutable_train()->set_train_batch_size(2);
    config_.mutable_train()->set_max_steps(0);
    EXPECT_TRUE(ResolveRunConfig(&config_, "", Program::kSft).ok());
  }
  absl::StatusOr<OfflineSummary> Run(const std::optional<CheckpointRecord>& resume = std::nullopt,
                                     const std::function<absl::Status()>& ending = absl::OkStatus) {
    const auto examples = OpenSftExamples(config_, tokenizer_, {ByteTokenizer::kEnd});
    if (!examples.ok()) return examples.status();
    services_.SetConfiguration(config_);
    Cancellation cancellation;
    const auto client = ConnectPolicyTrainer(config_, &cancellation);
    if (!client.ok()) return client.status();
    const auto folder = resume.has_value() ? RunFolder::Open(config_) : RunFolder::Create(config_);
    if (!folder.ok()) return folder.status();
    char* text = nullptr;
    size_t size = 0;
    std::FILE* out = open_memstream(&text, &size);
    auto view = std::make_unique<TerminalView>(out, false);
    auto summary = RunSft({.config = config_,
                           .tokenizer = tokenizer_,
                           .folder = **folder,
                           .view = *view,
                           .resume = resume,
                           .ending = ending,
                           .ends_continuable = true},
                          **examples, **client);
    view.reset();
    std::fclose(out);
    shown_ = text;
    free(text);
    return summary;
  }

  ScratchFolder scratch_;
  FakeServices services_;
  ByteTokenizer tokenizer_;
  RunConfig config_;
  std::string shown_;  // by the last run
};

TEST_F(SftTest, TakesEachExampleOnceAnEpochAndSavesTheResult) {
  config_.mutable_train()->set_num_episodes(2);
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->steps, 3);
  EXPECT_EQ(summary->checkpoint, "checkpoints/step_3/policy");
  int examples_of_second_length = 0;
  for (const auto& batch : services_.policy_batches()) {
    EXPECT_EQ(batch.size(), 2);
    double sum = 0;
    for (const TrainingSequence& sequence : batch) {
      examples_of_second_length += sequence.tokens().ids_size() == 7;
      for (float weight : ArrayOf(sequence, kLossWeights)) sum += weight;
    }
    EXPECT_NEAR(sum, 1, 1e-6);
  }
  EXPECT_EQ(examples_of_second_length, 2);
  EXPECT_EQ(services_.policy_updates()[0].loss().kind(), PolicyLossConfig::KIND_SFT);
  EXPECT_THAT(scratch_.Read("run/metrics.jsonl"), HasSubstr("\"sft/loss\":0.25"));
}

TEST_F(SftTest, WarmsUpOverTheStepsThatTheActorSays) {
  config_.mutable_train()->set_max_steps(4);
  config_.mutable_actor()->set_learning_rate(1e-3);
  config_.mutable_actor()->set_lr_scheduler("constant");
  config_.mutable_actor()->clear_lr_warmup_ratio();
  config_.mutable_actor()->set_lr_warmup_steps(2);
  ASSERT_TRUE(Run().ok());
  std::vector<double> rates;
  for (const PolicyUpdateHeader& header : services_.policy_updates()) rates.push_back(header.learning_rate());
  EXPECT_THAT(rates, ElementsAre(5e-4, 1e-3, 1e-3, 1e-3));
}

TEST_F(SftTest, SaysBesideTheStepsHowMuchTimeIsLeft) {
  config_.mutable_train()->set_max_steps(3);
  ASSERT_TRUE(Run().ok());
  const std::vector<std::string> lines = absl::StrSplit(shown_, '\n', absl::SkipEmpty());
  EXPECT_THAT(lines, ElementsAre("fine-tuning step 1/3: loss 0.2500",
                                 MatchesRegex("fine-tuning step 2/3: loss 0.2500, .* s left"),
                                 "fine-tuning step 3/3: loss 0.2500"));
}

TEST_F(SftTest, SaysThatNothingWasLearnedInStepsWithoutAGradient) {
  services_.spoil_policy_update = [](PolicyUpdateReply* reply) { reply->set_grad_norm(0); };
  config_.mutable_train()->set_max_steps(7);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(shown_, HasSubstr("warning: nothing was learned in the last 5 steps: the gradient was 0"));
  const std::vector<std::string> events = absl::StrSplit(scratch_.Read("run/events.jsonl"), '\n', absl::SkipEmpty());
  EXPECT_THAT(events, ElementsAre(AllOf(HasSubstr("\"step\":4"), HasSubstr("\"kind\":\"warning\""))));
}

TEST_F(SftTest, CountsStepsWithoutAGradientAcrossContinuations) {
  services_.spoil_policy_update = [](PolicyUpdateReply* reply) { reply->set_grad_norm(0); };
  config_.mutable_train()->set_save_steps(2);
  config_.mutable_train()->set_save_optimizer(true);
  config_.mutable_train()->set_max_steps(4);
  ASSERT_TRUE(Run().ok());
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() + "/run/events.jsonl")) << "four are not enough";
  for (const int64_t done : {4, 6}) {
    const auto record = ReadCheckpointRecord(absl::StrCat(scratch_.path(), "/run/checkpoints/step_", done));
    ASSERT_TRUE(record.ok()) << record.status();
    services_.SetOptimizerSteps(done);
    config_.mutable_train()->set_max_steps(done + 2);
    ASSERT_TRUE(Run(*record).ok());
    const std::vector<std::string> events = absl::StrSplit(scratch_.Read("run/events.jsonl"), '\n', absl::SkipEmpty());
    EXPECT_THAT(events, ElementsAre(AllOf(HasSubstr("\"step\":4"), HasSubstr("nothing was learned"))));
  }
}

TEST_F(SftTest, GoesOnAfterACheckpointAsIfItHadNeverStopped) {
  config_.mutable_train()->set_max_steps(5);
  config_.mutable_train()->set_save_steps(2);
  config_.mutable_train()->set_save_optimizer(true);
  ASSERT_TRUE(Run().ok());
  const auto whole = services_.policy_batches();
  const auto updates = services_.policy_updates();
  EXPECT_TRUE(std::filesystem::exists(scratch_.path() + "/run/checkpoints/step_4/policy_state"));

  const auto record = ReadCheckpointRecord(scratch_.path() + "/run/checkpoints/step_2");
  ASSERT_TRUE(record.ok()) << record.status();
  services_.SetOptimizerSteps(2);  // what a trainer that loaded step_2 would say
  config_.mutable_train()->set_load_checkpoint(true);
  const auto summary = Run(*record);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->steps, 5);
  EXPECT_EQ(summary->checkpoint, "checkpoints/step_5/policy");
  EXPECT_THAT(shown_, HasSubstr("going on after 2 of 5 steps"));
  const auto batches = services_.policy_batches();
  ASSERT_EQ(batches.size(), 8u);
  for (size_t step = 2; step < 5; ++step) {
    EXPECT_EQ(services_.policy_updates()[step + 3].learning_rate(), updates[step].learning_rate());
    ASSERT_EQ(batches[step + 3].size(), whole[step].size());
    for (size_t i = 0; i < whole[step].size(); ++i) {
      EXPECT_EQ(batches[step + 3][i].SerializeAsString(), whole[step][i].SerializeAsString());
    }
  }
  const std::vector<std::string> metrics = absl::StrSplit(scratch_.Read("run/metrics.jsonl"), '\n', absl::SkipEmpty());
  EXPECT_EQ(metrics.size(), 5u);
}

TEST_F(SftTest, GoesOnWithTheRowsThatComeNextThoughItsBatchIsAnother) {
  config_.mutable_train()->set_num_episodes(4);  // 12 rows
  config_.mutable_train()->set_save_steps(2);
  config_.mutable_train()->set_save_optimizer(true);
  ASSERT_TRUE(Run().ok());
  const auto ids = [](const TrainingSequence& row) {
    return std::vector<int32_t>(row.tokens().ids().begin(), row.tokens().ids().end());
  };
  std::vector<std::vector<int32_t>> rows;  // as they came, whatever their batch
  for (const auto& batch : services_.policy_batches()) {
    for (const auto& row : batch) rows.push_back(ids(row));
  }
  ASSERT_EQ(rows.size(), 12u);

  const auto record = ReadCheckpointRecord(scratch_.path() + "/run/checkpoints/step_4");  // after 8 rows
  ASSERT_TRUE(record.ok()) << record.status();
  services_.SetOptimizerSteps(4);
  const size_t before = services_.policy_batches().size();
  config_.mutable_train()->set_load_checkpoint(true);
  config_.mutable_train()->set_allow_changed_run(true);
  config_.mutable_train()->set_train_batch_size(1);
  const auto summary = Run(*record);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->steps, 8) << "four of two rows, four of one";
  const auto batches = services_.policy_batches();
  ASSERT_EQ(batches.size(), before + 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(ids(batches[before + i][0]), rows[8 + i]);
  double epoch = 0;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(scratch_.Read("run/metrics.jsonl"), '\n', absl::SkipEmpty()))) {
    const double next = nlohmann::json::parse(line)["data/epoch"].get<double>();
    EXPECT_GT(next, epoch);
    epoch = next;
  }
  EXPECT_EQ(epoch, 4);
}

TEST_F(SftTest, SavesAndEndsAfterTheStepInWhichItIsAskedToEnd) {
  config_.mutable_train()->set_max_steps(5);
  config_.mutable_train()->set_save_optimizer(true);
  const absl::Status told = absl::CancelledError("stopped by SIGTERM");
  EXPECT_EQ(Run({}, [&] { return services_.policy_batches().size() == 2 ? told : absl::OkStatus(); }).status(), told);
  EXPECT_EQ(services_.policy_batches().size(), 2u);
  const auto record = ReadCheckpointRecord(scratch_.path() + "/run/checkpoints/step_2");
  EXPECT_TRUE(record.ok()) << record.status();
}

TEST_F(SftTest, IsDoneWhereItIsAskedToEndInItsLastStep) {
  config_.mutable_train()->set_max_steps(2);
  const absl::Status told = absl::CancelledError("stopped by SIGTERM");
  const auto summary = Run({}, [&] { return services_.policy_batches().size() == 2 ? told : absl::OkStatus(); });
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->checkpoint, "checkpoints/step_2/policy");
}

TEST_F(SftTest, DoesNotGoOnWithATrainerThatDidNotLoadTheCheckpoint) {
  config_.mutable_train()->set_max_steps(4);
  config_.mutable_train()->set_save_steps(2);
  config_.mutable_train()->set_save_optimizer(true);
  ASSERT_TRUE(Run().ok());
  const auto record = ReadCheckpointRecord(scratch_.path() + "/run/checkpoints/step_2");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_THAT(std::string(Run(*record).status().message()),
              AllOf(HasSubstr("policy_trainer has made 4 optimizer steps, the checkpoint 2"), HasSubstr("step_2")));
}

TEST_F(SftTest, RefusesATrainerThatHasAlreadyTrained) {
  services_.SetOptimizerSteps(7);
  const absl::Status status = Run().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("policy_trainer has made 7 optimizer steps"), HasSubstr("begins after 0")));
  EXPECT_TRUE(services_.policy_updates().empty());
}

}  // namespace
}  // namespace quartet
