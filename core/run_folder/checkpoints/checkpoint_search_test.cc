#include "core/run_folder/checkpoints/checkpoint_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/testing/scratch_folder.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/checkpoint/state_folder.h"
#include "core/run_folder/testing/training_state.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A run with whole checkpoints after 5, 10 and 15 steps.
class CheckpointSearchTest : public ::testing::Test {
 protected:
  CheckpointSearchTest() {
    for (const int64_t step : {5, 10, 15}) Save(step);
  }

  static std::string StateFile(const std::string& folder) { return absl::StrCat(folder, "/", StateFileName(0, 1)); }

  std::string Folder(int64_t step) const { return absl::StrCat(checkpoints_, "/", CheckpointId(step)); }

  void Save(int64_t step) {
    CheckpointRecord record;
    record.step = step;
    record.rollout_batch_size = 2;
    record.policy = WriteTrainingState(Folder(step) + "/policy_state", step);
    record.critic = WriteTrainingState(Folder(step) + "/critic_state", step);
    ASSERT_TRUE(WriteCheckpointRecord(Folder(step), record).ok());
  }

  absl::StatusOr<CheckpointSearch> Search() const {
    return FindNewestCheckpoint(checkpoints_, [] { return absl::OkStatus(); });
  }
  // The step that is found, and nothing that was passed over.
  void ExpectFinds(int64_t step) const {
    const auto search = Search();
    ASSERT_TRUE(search.ok() && search->found.has_value()) << search.status();
    EXPECT_EQ(search->found->step, step);
    EXPECT_THAT(search->passed_over, IsEmpty());
  }
  // Step 10 is found, and of step 15 is said what is wrong with it.
  void ExpectPassesOverTheNewest(const std::string& why) const {
    const auto search = Search();
    ASSERT_TRUE(search.ok() && search->found.has_value()) << search.status();
    EXPECT_EQ(search->found->step, 10);
    EXPECT_THAT(search->passed_over, ElementsAre(AllOf(HasSubstr(Folder(15)), HasSubstr(why))));
  }

  ScratchFolder scratch_;
  std::string checkpoints_ = scratch_.path() + "/checkpoints";
};

TEST_F(CheckpointSearchTest, FindsTheNewestWhateverLatestIs) {
  ExpectFinds(15);
  const std::string latest = checkpoints_ + "/latest";
  fs::create_symlink("step_5", latest);
  ExpectFinds(15);
  fs::remove(latest);
  fs::create_symlink("step_20", latest);  // points at nothing
  ExpectFinds(15);
  fs::remove(latest);
  fs::copy(Folder(15), latest, fs::copy_options::recursive);  // as cp -L makes it
  ExpectFinds(15);
}

TEST_F(CheckpointSearchTest, PassesOverACheckpointThatWasNotFinished) {
  fs::remove(Folder(15) + "/checkpoint.json");
  ExpectPassesOverTheNewest("was never finished");
}

TEST_F(CheckpointSearchTest, PassesOverAFileThatWasCutShort) {
  const std::string file = StateFile(Folder(15) + "/policy_state");
  fs::resize_file(file, fs::file_size(file) - 1);
  ExpectPassesOverTheNewest("cut short");
}

TEST_F(CheckpointSearchTest, PassesOverAFileWithOneBitChanged) {
  const std::string file = StateFile(Folder(15) + "/critic_state");
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const char last = static_cast<char>(stream.get());
  stream.seekp(-1, std::ios::end);
  stream.put(static_cast<char>(last ^ 1));
  stream.close();
  ExpectPassesOverTheNewest(file);
}

TEST_F(CheckpointSearchTest, PassesOverAFileThatIsMissing) {
  fs::remove(StateFile(Folder(15) + "/policy_state"));
  ExpectPassesOverTheNewest(StateFileName(0, 1));
}

TEST_F(CheckpointSearchTest, PassesOverAStateOfAnotherStep) {
  fs::remove_all(Folder(15) + "/critic_state");
  WriteTrainingState(Folder(15) + "/critic_state", 14);
  ExpectPassesOverTheNewest("another checkpoint");
}

TEST_F(CheckpointSearchTest, PassesOverAFolderUnderAnotherName) {
  fs::remove_all(Folder(15));
  fs::copy(Folder(10), Folder(15), fs::copy_options::recursive);
  ExpectPassesOverTheNewest("is of step 10");
}

TEST_F(CheckpointSearchTest, PassesOverARecordThatIsNone) {
  scratch_.Write("checkpoints/step_15/checkpoint.json", "{\"step\": 15");
  ExpectPassesOverTheNewest("checkpoint.json");
}

TEST_F(CheckpointSearchTest, PassesOverACheckpointWithoutTrainingStates) {
  CheckpointRecord record;
  record.step = 15;
  record.rollout_batch_size = 2;
  ASSERT_TRUE(WriteCheckpointRecord(Folder(15), record).ok());
  ExpectPassesOverTheNewest("train.save_optimizer");
}

TEST_F(CheckpointSearchTest, FailsWhereNoneOfThemVerifies) {
  scratch_.Write("checkpoints/step_15/checkpoint.json", "");
  fs::remove(StateFile(Folder(10) + "/policy_state"));
  fs::remove(StateFile(Folder(5) + "/critic_state"));
  const absl::Status status = Search().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "that of the newest";
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(Folder(15)), HasSubstr(Folder(10)), HasSubstr(Folder(5)),
                                                   HasSubstr("give another run_dir to begin anew")));
}

TEST_F(CheckpointSearchTest, FindsNothingBeforeTheFirstSaveIsFinished) {
  fs::remove_all(checkpoints_);
  const auto none = Search();
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->found.has_value());
  Save(5);
  fs::remove(Folder(5) + "/checkpoint.json");
  const auto unfinished = Search();
  ASSERT_TRUE(unfinished.ok()) << unfinished.status();
  EXPECT_FALSE(unfinished->found.has_value());
  EXPECT_THAT(unfinished->passed_over, ElementsAre(HasSubstr(Folder(5))));
}

TEST_F(CheckpointSearchTest, FailsWhereACheckpointHasLostItsName) {
  fs::rename(Folder(15), checkpoints_ + "/latest");
  fs::remove_all(Folder(10));
  fs::remove_all(Folder(5));
  const absl::Status status = Search().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("checkpoints/latest"), HasSubstr("rename it")));
}

TEST_F(CheckpointSearchTest, FailsWhereTheFolderCannotBeRead) {
  fs::remove_all(checkpoints_);
  scratch_.Write("checkpoints", "a file");
  const absl::Status status = Search().status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(checkpoints_));
}

TEST_F(CheckpointSearchTest, EndsWhenItIsTold) {
  const absl::Status stop = absl::CancelledError("stopped by SIGINT");
  EXPECT_EQ(FindNewestCheckpoint(checkpoints_, [&] { return stop; }).status(), stop);
}

TEST_F(CheckpointSearchTest, SaysThatAModelBesideTheStatesIsDamagedAndGoesOnFromThem) {
  scratch_.Write("checkpoints/step_15/policy/model.safetensors", "weights");
  auto record = ReadCheckpointRecord(Folder(15));
  ASSERT_TRUE(record.ok());
  const auto models = HashModels(Folder(15));
  ASSERT_TRUE(models.ok());
  record->models = *models;
  ASSERT_TRUE(WriteCheckpointRecord(Folder(15), *record).ok());
  EXPECT_THAT(Search()->notes, IsEmpty());
  scratch_.Write("checkpoints/step_15/policy/model.safetensors", "weighus");
  ExpectFinds(15);
  EXPECT_THAT(Search()->notes, ElementsAre(AllOf(HasSubstr("do not use the model " + Folder(15) + "/policy"),
                                                 HasSubstr("model.safetensors: does not have the bytes"))));
}

TEST_F(CheckpointSearchTest, TakesARecordOfTheFirstReleaseAndSaysThatItHasNoHash) {
  std::string text = scratch_.Read("checkpoints/step_15/checkpoint.json");
  text = "{" + text.substr(text.find(',') + 1);
  scratch_.Write("checkpoints/step_15/checkpoint.json", text);
  ExpectFinds(15);
  EXPECT_THAT(Search()->notes, ElementsAre(HasSubstr("/step_15/checkpoint.json has no hash of its own")));
}

TEST_F(CheckpointSearchTest, PassesOverARecordThatWasAltered) {
  std::string text = scratch_.Read("checkpoints/step_15/checkpoint.json");
  text[text.find("rollout_batch_size") + 21] = '3';
  scratch_.Write("checkpoints/step_15/checkpoint.json", text);
  ExpectPassesOverTheNewest("does not have the hash that it begins with");
}

}  // namespace
}  // namespace quartet
