#include "orchestrator/session/plan_writer.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "core/base/files/files.h"
#include "core/base/testing/scratch_folder.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

class PlanWriterTest : public testing::Test {
 protected:
  // A planner that does this.
  std::string Planner(const std::string& script) const {
    const std::string path = scratch_.path() + "/planner";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  std::string Text(const std::string& name) const { return ReadFile(scratch_.path() + "/" + name).value_or("none"); }
  template <typename Condition>
  static void Await(const Condition& condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  const ScratchFolder scratch_;
};

TEST_F(PlanWriterTest, LeavesWhatThePlannerSays) {
  const PlanWriter writer(scratch_.path(), Planner("echo \"{\\\"asked\\\": \\\"$*\\\"}\"; exit 1"));
  Await([&] { return Text("plan.json") != "none"; });
  EXPECT_EQ(Text("plan.json"), "{\"asked\": \"--config=" + scratch_.path() + "/run.textproto --format=json\"}\n");
}

TEST_F(PlanWriterTest, LeavesNothingOfAPlannerThatFails) {
  {
    const PlanWriter writer(scratch_.path(), Planner("echo no; touch " + scratch_.path() + "/asked"));
    Await([&] { return Text("asked") != "none" && Text("plan.json.new") == "none"; });
  }
  EXPECT_EQ(Text("plan.json"), "none");
  const PlanWriter without(scratch_.path(), scratch_.path() + "/is not there");
}

TEST_F(PlanWriterTest, EndsAPlannerThatStillRuns) {
  {
    const PlanWriter writer(scratch_.path(), Planner("echo {; touch " + scratch_.path() + "/asked; exec sleep 1000"));
    Await([&] { return Text("asked") != "none"; });
  }
  EXPECT_EQ(Text("plan.json"), "none");
  EXPECT_EQ(Text("plan.json.new"), "none");
}

}  // namespace
}  // namespace quartet
