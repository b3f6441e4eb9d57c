#include "core/checkpoint/newest_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/state_folder.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NewestState : public ::testing::Test {
 protected:
  NewestState() {
    EXPECT_NE(mkdtemp(run_.data()), nullptr);
    config_.set_run_dir(run_);
    config_.mutable_train()->set_load_checkpoint(true);
  }
  ~NewestState() override { std::filesystem::remove_all(run_); }

  std::string Checkpoint(const std::string& id) const { return run_ + "/checkpoints/" + id; }
  // A finished checkpoint, with the state of a policy.
  void Save(const std::string& id) const {
    std::filesystem::create_directories(Checkpoint(id) + "/policy_state");
    EXPECT_TRUE(WriteStateManifest(Checkpoint(id) + "/policy_state", StateManifest()).ok());
    std::ofstream(Checkpoint(id) + "/checkpoint.json") << "{}";
  }
  std::string Found() const {
    const absl::StatusOr<std::string> found = FindNewestState(run_, "policy_state");
    return found.ok() ? *found : std::string(found.status().message());
  }

  std::string run_ = ::testing::TempDir() + "/run_XXXXXX";
  RunConfig config_;
};

TEST_F(NewestState, IsOfTheLastStepThatWasSavedWhole) {
  EXPECT_EQ(Found(), "");
  Save("step_9");
  Save("step_10");
  EXPECT_EQ(Found(), Checkpoint("step_10/policy_state"));
  Save("step_11");
  std::filesystem::remove(Checkpoint("step_11/checkpoint.json"));  // never finished
  Save("step_12");
  std::ofstream(Checkpoint("step_12/policy_state/manifest.json")) << "{}";  // damaged
  Save("latest");
  EXPECT_EQ(Found(), Checkpoint("step_10/policy_state"));
}

TEST_F(NewestState, IsMissedByName) {
  Save("step_1");
  Save("step_2");
  for (const char* id : {"step_1", "step_2"}) std::filesystem::remove_all(Checkpoint(id) + "/policy_state");
  EXPECT_THAT(Found(), AllOf(HasSubstr("cannot be continued"), HasSubstr(Checkpoint("step_2/policy_state"))));
}

TEST_F(NewestState, IsTakenByATrainerThatIsToContinueWhateverTheRunBeganWith) {
  const auto taken = [this] {
    TrainerConfig trainer = config_.actor();
    EXPECT_TRUE(UseNewestState(config_.train(), run_, "policy_state", &trainer).ok());
    return trainer.load_checkpoint();
  };
  EXPECT_EQ(taken(), "");
  config_.mutable_actor()->set_load_checkpoint("/another");
  EXPECT_EQ(taken(), "/another") << "the run begins anew";
  Save("step_3");
  Save("step_4");
  EXPECT_EQ(taken(), Checkpoint("step_4/policy_state"));
  config_.mutable_actor()->set_load_checkpoint(Checkpoint("step_3/policy_state"));
  EXPECT_EQ(taken(), Checkpoint("step_3/policy_state")) << "the orchestrator has chosen";
  config_.mutable_actor()->clear_load_checkpoint();
  config_.mutable_train()->set_load_checkpoint(false);
  EXPECT_EQ(taken(), "");
}

}  // namespace
}  // namespace quartet
