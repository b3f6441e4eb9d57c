#include "orchestrator/upgrades/request_check.h"

#include <filesystem>
#include <string>

#include "core/base/testing/scratch_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(RequestCheck, NamesTheServicesThatTheRunHas) {
  RunConfig config;
  config.mutable_train()->set_save_optimizer(true);
  const auto error = [&](const std::string& service) {
    const absl::Status status = CheckCanBeReplaced({"policy_trainer", "rollout", "scorer"}, config, service);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error("scorer"), "");
  EXPECT_EQ(error("policy_trainer"), "");
  EXPECT_EQ(error("critic_trainer"),
            "the run has no service \"critic_trainer\"; it has policy_trainer, rollout, scorer");
  config.mutable_train()->set_save_optimizer(false);
  EXPECT_EQ(error("scorer"), "");
  EXPECT_THAT(error("policy_trainer"), HasSubstr("train.save_optimizer is false in this run"));
}

TEST(RequestCheck, NamesTheProgramThatABundleLacksOrThatCannotBeExecuted) {
  const ScratchFolder scratch;
  const auto error = [&](const std::string& folder) {
    const absl::Status status = CheckHasPrograms("scorer", folder);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error("/nowhere"), "there is no /nowhere/scorer/scorer: --bundle names the folder of an unpacked bundle");
  const auto make = [&](const std::string& name, fs::perms mode) {
    scratch.Write(name, "");
    fs::permissions(scratch.path() + "/" + name, mode);
  };
  make("scorer/scorer", fs::perms::owner_all);
  EXPECT_THAT(error(scratch.path()), HasSubstr("there is no " + scratch.path() + "/scorer/rank: "));
  make("scorer/rank", fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THAT(error(scratch.path()),
              HasSubstr(scratch.path() + "/scorer/rank cannot be executed: Permission denied; "));
  make("scorer/rank", fs::perms::owner_all);
  EXPECT_EQ(error(scratch.path()), "");
}

TEST(RequestCheck, NamesAProgramThatDoesNotRunHere) {
  const ScratchFolder scratch;
  const auto status = [&](const std::string& text) {
    scratch.Write("scorer/scorer", text);
    fs::permissions(scratch.path() + "/scorer/scorer", fs::perms::owner_all);
    return CheckRunsHere("scorer", scratch.path(), absl::OkStatus);
  };
  EXPECT_TRUE(status("#!/bin/sh\necho quartet 0.2.0, wire protocol 6\n").ok());
  // Of another machine; for want of a library; killed by an instruction that the CPU lacks.
  for (const std::string text : {"\x7f"
                                 "ELF\2\1\1",
                                 "#!/nowhere/sh\n", "#!/bin/sh\nexit 127\n", "#!/bin/sh\nkill -ILL $$\n"}) {
    const absl::Status refused = status(text);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(scratch.path() + "/scorer/scorer is no program of Quartet's that runs on this host"));
  }
}

}  // namespace
}  // namespace quartet
