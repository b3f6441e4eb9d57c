#include "core/terminal/continue_command.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <vector>

namespace quartet {
namespace {

class ContinueCommandTest : public ::testing::Test {
 protected:
  ContinueCommandTest() {
    unsetenv("BUILD_WORKSPACE_DIRECTORY");
    unsetenv("BUILD_WORKING_DIRECTORY");
  }
  static std::string Of(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "bin/orchestrator");
    return ContinueCommand(static_cast<int>(arguments.size()), arguments.data(), "//orchestrator", "/runs/first");
  }
};

TEST_F(ContinueCommandTest, AddsTheRunsFolderAndThatItIsContinued) {
  EXPECT_EQ(Of({"--launch", "--config=run.textproto", "--set", "train.max_steps=20"}),
            "bin/orchestrator --launch --config=run.textproto --set train.max_steps=20 --set=run_dir=/runs/first "
            "--set=train.load_checkpoint=true");
}

TEST_F(ContinueCommandTest, OfARunThatWasContinuedIsTheSame) {
  EXPECT_EQ(Of({"--set=run_dir=/runs/first", "--set", "train.load_checkpoint=true"}),
            "bin/orchestrator --set=run_dir=/runs/first --set train.load_checkpoint=true");
}

TEST_F(ContinueCommandTest, NamesTheFolderOnce) {
  EXPECT_EQ(Of({"--set", "run_dir=first", "--launch", "--set=run_dir=../first", "--set=train.load_checkpoint=false"}),
            "bin/orchestrator --launch --set=run_dir=/runs/first --set=train.load_checkpoint=true");
}

TEST_F(ContinueCommandTest, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(Of({"--set=data.input_template={}it's $HOME"}),
            "bin/orchestrator '--set=data.input_template={}it'\\''s $HOME' --set=run_dir=/runs/first "
            "--set=train.load_checkpoint=true");
}

TEST_F(ContinueCommandTest, IsOneOfBazelwWhereBazelRanTheProgram) {
  setenv("BUILD_WORKSPACE_DIRECTORY", "/src/quartet", 1);
  setenv("BUILD_WORKING_DIRECTORY", "/src/quartet", 1);
  EXPECT_EQ(Of({"--launch"}),
            "./bazelw run //orchestrator -- --launch --set=run_dir=/runs/first --set=train.load_checkpoint=true");
  setenv("BUILD_WORKING_DIRECTORY", "/src/quartet/examples", 1);
  EXPECT_EQ(Of({}),
            "/src/quartet/bazelw run //orchestrator -- --set=run_dir=/runs/first --set=train.load_checkpoint=true");
}

TEST_F(ContinueCommandTest, RunsAnyTargetFromWhereItIsPrinted) {
  EXPECT_EQ(RunCommand("//orchestrator:sft", "/opt/my programs/sft"), "'/opt/my programs/sft'");
  setenv("BUILD_WORKSPACE_DIRECTORY", "/src/my quartet", 1);
  setenv("BUILD_WORKING_DIRECTORY", "/src/my quartet", 1);
  EXPECT_EQ(RunCommand("//orchestrator:sft", "/opt/sft"), "./bazelw run //orchestrator:sft --");
  setenv("BUILD_WORKING_DIRECTORY", "/src/my quartet/examples", 1);
  EXPECT_EQ(RunCommand("//orchestrator:sft", "/opt/sft"), "'/src/my quartet/bazelw' run //orchestrator:sft --");
}

}  // namespace
}  // namespace quartet
