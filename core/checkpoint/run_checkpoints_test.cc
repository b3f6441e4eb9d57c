#include "core/checkpoint/run_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class RunCheckpoints : public ::testing::Test {
 protected:
  RunCheckpoints() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~RunCheckpoints() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = ::testing::TempDir() + "/checkpoints_XXXXXX";
};

TEST_F(RunCheckpoints, AreTheFoldersThatAreNamedAfterAStep) {
  for (const char* name :
       {"step_9", "step_12", "step_", "step_0", "step_-1", "step_+1", "step_01", "step_1x", "step_ 1", "latest", "1"}) {
    std::filesystem::create_directory(folder_ + "/" + name);
  }
  EXPECT_EQ(CheckpointId(12), "step_12");
  EXPECT_THAT(*ListCheckpoints(folder_), ElementsAre(Pair(12, folder_ + "/step_12"), Pair(9, folder_ + "/step_9")));
}

TEST_F(RunCheckpoints, AreNoneWithoutAFolderAndAnErrorWhereItIsNone) {
  std::filesystem::remove(folder_);
  EXPECT_THAT(*ListCheckpoints(folder_), IsEmpty());
  std::ofstream(folder_) << "a file";
  EXPECT_THAT(std::string(ListCheckpoints(folder_).status().message()), HasSubstr(folder_));
}

TEST_F(RunCheckpoints, AreFinishedOnceTheirRecordIsThere) {
  EXPECT_FALSE(IsFinished(folder_));
  std::ofstream(folder_ + "/checkpoint.json") << "{}";
  EXPECT_TRUE(IsFinished(folder_));
}

TEST_F(RunCheckpoints, OfAFolderThatIsNoStateNameTheStatesInItOrBesideIt) {
  const std::string run = folder_ + "/run", step = run + "/checkpoints/step_2";
  for (const std::string& one : {step, run + "/checkpoints/step_10"}) {
    std::filesystem::create_directories(one + "/policy");
    std::filesystem::create_directories(one + "/policy_state");
    std::ofstream(one + "/checkpoint.json") << "{}";
  }
  EXPECT_EQ(HintOfStates(run), "") << "none has its manifest";
  std::ofstream(step + "/policy_state/manifest.json") << "{}";
  const std::string hint = "; there is " + step + "/policy_state";
  for (const std::string& folder : {run, run + "/", run + "/checkpoints", step, step + "/policy", step + "/policy/"}) {
    EXPECT_EQ(HintOfStates(folder), hint) << folder;
  }
  EXPECT_EQ(HintOfStates(step + "/critic_state"), "") << "which is another's";
  EXPECT_EQ(HintOfStates(folder_), "");
  std::filesystem::create_directories(step + "/critic_state");
  std::ofstream(step + "/critic_state/manifest.json") << "{}";
  EXPECT_EQ(HintOfStates(step), "; there are " + step + "/policy_state and " + step + "/critic_state");
}

}  // namespace
}  // namespace quartet
