#include "core/run_folder/run_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class OpenRunTest : public ::testing::Test {
 protected:
  OpenRunTest() {
    config_.set_run_dir(scratch_.path() + "/run");
    EXPECT_TRUE(ResolveRunConfig(&config_, "").ok());
  }
  absl::StatusOr<RunStart> Open() const {
    return OpenRun(config_, "", {}, [] { return absl::OkStatus(); });
  }
  std::string Error() const {
    const absl::Status status = Open().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
    return std::string(status.message());
  }

  ScratchFolder scratch_;
  RunConfig config_;
};

TEST_F(OpenRunTest, SaysHowARunThatIsThereIsContinued) {
  {
    const auto start = Open();
    ASSERT_TRUE(start.ok() && start->folder->BeginAfter(0).ok());
    ASSERT_TRUE(start->folder->WriteMetrics(0, Metrics()).ok());
  }
  EXPECT_THAT(Error(), AllOf(HasSubstr("/run is not empty (it has metrics.jsonl)"),
                             HasSubstr("to continue its run: --set=train.load_checkpoint=true")));
  config_.mutable_train()->set_load_checkpoint(true);
  const auto again = Open();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->resume.has_value());
  EXPECT_THAT(again->notes, testing::ElementsAre(HasSubstr("has made 1 step and has no checkpoint")));
}

// One that has its end and saved no state can only be kept.
TEST_F(OpenRunTest, AdvisesNobodyToContinueWhatCannotBe) {
  {
    const auto start = Open();
    ASSERT_TRUE(start.ok() && start->folder->BeginAfter(0).ok());
    const std::string checkpoint = start->folder->checkpoints_path() + "/step_1";
    std::filesystem::create_directories(checkpoint);
    CheckpointRecord record;
    record.step = 1;
    record.rollout_batch_size = 2;
    ASSERT_TRUE(WriteCheckpointRecord(checkpoint, record).ok());
  }
  EXPECT_THAT(Error(), AllOf(HasSubstr("is not empty"), Not(HasSubstr("load_checkpoint"))));
}

TEST_F(OpenRunTest, IsRefusedBeforeAnythingIsMadeWhereSomethingIsInTheWay) {
  EXPECT_TRUE(CheckRunDir(config_, "").ok());
  EXPECT_FALSE(std::filesystem::exists(config_.run_dir()));
  {
    const auto start = Open();
    ASSERT_TRUE(start.ok() && start->folder->BeginAfter(0).ok());
    ASSERT_TRUE(start->folder->WriteMetrics(0, Metrics()).ok());
    const absl::Status in_use = CheckRunDir(config_, "");
    EXPECT_EQ(in_use.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(in_use.message()), HasSubstr("is in use by another orchestrator"));
  }
  EXPECT_EQ(CheckRunDir(config_, "").message(), Error());
  const absl::Status of_another_program = CheckNewRunDir(config_, "");
  EXPECT_EQ(of_another_program.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(of_another_program.message()), Not(HasSubstr("load_checkpoint")));
  config_.mutable_train()->set_load_checkpoint(true);
  EXPECT_TRUE(CheckRunDir(config_, "").ok());
  scratch_.Write("file", "");
  config_.set_run_dir(scratch_.path() + "/file");
  EXPECT_THAT(std::string(CheckRunDir(config_, "").message()), HasSubstr("is a file, not a folder"));
}

TEST_F(OpenRunTest, SaysWhoseRunItIsThatAnotherProgramWouldGoOnWith) {
  {
    const auto start = Open();
    ASSERT_TRUE(start.ok() && start->folder->BeginAfter(0).ok());
  }
  config_.mutable_train()->set_load_checkpoint(true);
  EXPECT_TRUE(CheckRunDir(config_, "").ok());
  config_.mutable_sft()->add_data("/rows.jsonl");
  EXPECT_THAT(std::string(CheckRunDir(config_, "").message()),
              HasSubstr("has a run of the program ppo, with which sft cannot go on"));
}

TEST_F(OpenRunTest, DoesNotOfferToContinueWhatIsNoRun) {
  scratch_.Write("run/thesis.tex", "");
  EXPECT_THAT(Error(), AllOf(HasSubstr("it has thesis.tex"), Not(HasSubstr("load_checkpoint"))));
}

}  // namespace
}  // namespace quartet
