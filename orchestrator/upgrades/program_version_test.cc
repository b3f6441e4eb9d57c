#include "orchestrator/upgrades/program_version.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/testing/scratch_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

class ProgramVersionTest : public testing::Test {
 protected:
  // Of a program that runs `script`.
  absl::StatusOr<ProgramVersion> Read(const std::string& script) {
    const std::string path = scratch_.path() + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return ReadProgramVersion(path, proceed_, timeout_);
  }

  std::function<absl::Status()> proceed_ = absl::OkStatus;
  absl::Duration timeout_ = absl::InfiniteDuration();

  ScratchFolder scratch_;
};

TEST_F(ProgramVersionTest, IsOfOneProtocolOrOfSeveral) {
  const auto one = Read("echo quartet 0.2.0, built from its sources, wire protocol 6");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->text, "quartet 0.2.0, built from its sources, wire protocol 6");
  EXPECT_EQ(one->min_protocol, 6);
  EXPECT_EQ(one->protocol, 6);

  const auto several = Read("echo quartet 0.3.0, wire protocols 6 to 17");
  ASSERT_TRUE(several.ok()) << several.status();
  EXPECT_EQ(several->min_protocol, 6);
  EXPECT_EQ(several->protocol, 17);
}

TEST_F(ProgramVersionTest, IsReadThoughAWarningFollows) {
  const auto version = Read("echo quartet 0.2.0, wire protocol 6; echo a library warns >&2");
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(version->protocol, 6);
}

// It would hold the run for as long as it takes.
TEST_F(ProgramVersionTest, IsNotWaitedForWithoutEnd) {
  timeout_ = absl::Milliseconds(100);
  EXPECT_EQ(Read("sleep 1000; true").status().code(), absl::StatusCode::kDeadlineExceeded);
  timeout_ = absl::InfiniteDuration();
  const absl::Status stopped = absl::CancelledError("stopped by SIGINT");
  proceed_ = [&] { return stopped; };
  EXPECT_EQ(Read("sleep 1000; true").status(), stopped);
}

TEST_F(ProgramVersionTest, IsOfNoOtherProgram) {
  for (const std::string script : {"echo hello", "echo quartet 0.2.0", "echo quartet 0.2.0, wire protocol six",
                                   "echo other 1, wire protocol 6", "echo quartet 0.2.0, wire protocol 6; exit 3"}) {
    const absl::Status status = Read(script).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << script;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no program of Quartet's that runs on this host"));
  }
}

}  // namespace
}  // namespace quartet
