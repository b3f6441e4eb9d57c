#include "core/run_folder/control_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/testing/scratch_folder.h"
#include "core/run_folder/run_lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ControlFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    lock_ = RunLock::Take(scratch_.path()).value();
    folder_ = ControlFolder::Open(scratch_.path()).value();
  }
  absl::Status Ask(const std::string& action) {
    return AskRun(
        scratch_.path(), {.id = "", .action = action, .service = "scorer", .programs_folder = "/new"},
        [this](const std::string& text) { said_.push_back(text); }, [this] { return stopped_; });
  }
  ControlRequest AwaitRequest() {
    while (true) {
      if (std::optional<ControlRequest> request = folder_->Take()) return *request;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  const ScratchFolder scratch_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<ControlFolder> folder_;
  std::vector<std::string> said_;
  absl::Status stopped_;
};

TEST_F(ControlFolderTest, BringsARequestToTheRunAndWhatItSaysBack) {
  EXPECT_FALSE(folder_->Take().has_value());
  std::thread run([this] {
    const ControlRequest request = AwaitRequest();
    EXPECT_EQ(request.action, "upgrade");
    EXPECT_EQ(request.service, "scorer");
    EXPECT_EQ(request.programs_folder, "/new");
    folder_->Say("it stops");
    folder_->Say("two\nlines");
    folder_->Finish(absl::OkStatus(), "done");
    AwaitRequest();
    folder_->Finish(absl::NotFoundError("there is none"));
  });
  EXPECT_TRUE(Ask("upgrade").ok());
  EXPECT_THAT(said_, ElementsAre("it stops", "two\nlines", "done"));
  EXPECT_EQ(Ask("upgrade"), absl::NotFoundError("there is none"));
  run.join();
}

TEST_F(ControlFolderTest, AnswersWhoAsksARunThatEnds) {
  std::thread asking([this] { EXPECT_EQ(Ask("hold").code(), absl::StatusCode::kUnavailable); });
  while (access((scratch_.path() + "/control/request.json").c_str(), F_OK) != 0) absl::SleepFor(absl::Milliseconds(5));
  folder_ = nullptr;
  asking.join();
  // One that is killed answers nothing.
  folder_ = ControlFolder::Open(scratch_.path()).value();
  std::thread dying([this] {
    AwaitRequest();
    lock_ = nullptr;
  });
  EXPECT_THAT(std::string(Ask("hold").message()), HasSubstr("ended without an answer"));
  dying.join();
  EXPECT_EQ(Ask("hold").code(), absl::StatusCode::kFailedPrecondition) << "nobody uses the folder";
}

TEST_F(ControlFolderTest, TakesOneRequestAtATimeAndGivesUpWhatWasNotTaken) {
  stopped_ = absl::CancelledError("stopped");
  EXPECT_EQ(Ask("hold"), stopped_);
  EXPECT_FALSE(folder_->Take().has_value()) << "it was taken back";
  std::ofstream(scratch_.path() + "/control/request.json") << R"({"id": "1", "action": "hold"})";
  EXPECT_THAT(std::string(Ask("hold").message()), HasSubstr("is being asked for something already"));
  ASSERT_TRUE(folder_->Take().has_value());
  std::ofstream(scratch_.path() + "/control/request.json") << R"({"id": "2", "action": "hold"})";
  EXPECT_FALSE(folder_->Take().has_value()) << "the first is not finished";
  folder_->Finish(absl::OkStatus());
  EXPECT_EQ(folder_->Take()->id, "2");
}

TEST_F(ControlFolderTest, IsOfTheRunsUserAlone) {
  const std::string path = scratch_.path() + "/control";
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  ASSERT_TRUE(ControlFolder::Open(scratch_.path()).ok());
  struct stat folder;
  ASSERT_EQ(stat(path.c_str(), &folder), 0);
  EXPECT_EQ(folder.st_mode & 0777, 0700u);
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(ControlFolder::Open(scratch_.path()).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ControlFolderTest, DropsWhatIsNoRequestOrOfAnEarlierOrchestrator) {
  const std::string path = scratch_.path() + "/control/request.json";
  std::ofstream(path) << "nonsense";
  EXPECT_FALSE(folder_->Take().has_value());
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  ASSERT_EQ(symlink("/etc/hostname", path.c_str()), 0);
  EXPECT_FALSE(folder_->Take().has_value()) << "no plain file";
  std::ofstream(path) << R"({"id": "1", "action": "hold"})";
  if (geteuid() == 0) {
    ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
    EXPECT_FALSE(folder_->Take().has_value()) << "another user's";
    std::ofstream(path) << R"({"id": "1", "action": "hold"})";
  }
  struct stat folder;
  ASSERT_EQ(stat((scratch_.path() + "/control").c_str(), &folder), 0);
  EXPECT_EQ(folder.st_mode & 0777, 0700u) << "nobody else's";
  folder_ = ControlFolder::Open(scratch_.path()).value();
  EXPECT_FALSE(folder_->Take().has_value());
}

}  // namespace
}  // namespace quartet
