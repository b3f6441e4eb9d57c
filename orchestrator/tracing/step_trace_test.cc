#include "orchestrator/tracing/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/testing/scratch_folder.h"
#include "core/base/trace.h"
#include "core/clients/testing/fake_services.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Services that answer, and of which none knows of traces.
class StepTraceTest : public ::testing::Test {
 protected:
  // Of a run of `steps` steps that makes `first` first.
  void Make(const std::string& trace_steps, int64_t first, int64_t steps) {
    config_ = services_.MakeConfig(scratch_.path(), static_cast<int>(steps));
    config_.mutable_train()->set_trace_steps(trace_steps);
    folder_ = RunFolder::Create(config_).value();
    ASSERT_TRUE(folder_->BeginAfter(0).ok());
    clients_ = ConnectServices(config_, &cancellation_).value();
    trace_.emplace(config_, first, steps, clients_.all(), *folder_, view_);
  }
  void MakeSteps(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      trace_->BeginStep(step);
      EXPECT_TRUE(clients_.scorer->GetInfo().ok());
      trace_->EndStep(step);
    }
  }
  ~StepTraceTest() override {
    trace_.reset();
    std::fclose(terminal_);
    std::free(shown_);
  }
  std::string Shown() {
    std::fflush(terminal_);
    return std::string(shown_, shown_size_);
  }
  // Names of the spans of a trace, in the order in which they ended.
  std::vector<std::string> Spans(const std::string& name) {
    std::vector<std::string> spans;
    const nlohmann::json events = nlohmann::json::parse(scratch_.Read("run/" + name));
    for (const nlohmann::json& event : events) {
      if (event["ph"] == "X") spans.push_back(event["name"]);
    }
    return spans;
  }

  ScratchFolder scratch_;
  FakeServices services_;
  Cancellation cancellation_;
  char* shown_ = nullptr;
  size_t shown_size_ = 0;
  std::FILE* terminal_ = open_memstream(&shown_, &shown_size_);
  TerminalView view_{terminal_, false};
  RunConfig config_;
  std::unique_ptr<RunFolder> folder_;
  Services clients_;
  std::optional<StepTrace> trace_;
};

TEST_F(StepTraceTest, HasTheStepsThatAreAskedForAndTheirCalls) {
  Make("2-3", 0, 10);
  MakeSteps(0, 5);
  EXPECT_THAT(Spans("trace_2-3.json"), ::testing::ElementsAre("GetInfo", "step 2", "GetInfo", "step 3"));
  EXPECT_THAT(Shown(), HasSubstr("run/trace_2-3.json"));
  EXPECT_FALSE(TraceEnabled());
}

TEST_F(StepTraceTest, OfAnOddRunHasWhatThereIs) {
  // Services that know no traces are left out, each with a warning.
  Make("1-4", 0, 3);
  MakeSteps(0, 2);
  trace_->BeginStep(2);
  trace_.reset();  // the run ends within its last step
  EXPECT_THAT(Spans("trace_1-2.json"), ::testing::ElementsAre("GetInfo", "step 1"));
  for (const char* service : {"rollout", "policy_trainer", "critic_trainer", "scorer"}) {
    EXPECT_THAT(Shown(), HasSubstr(std::string("is without the ") + service));
    EXPECT_THAT(scratch_.Read("run/events.jsonl"), HasSubstr(std::string("is without the ") + service));
  }
}

TEST_F(StepTraceTest, OfStepsThatTheRunDoesNotMakeIsAWarning) {
  Make("4-9", 0, 4);
  MakeSteps(0, 4);
  EXPECT_THAT(Shown(), AllOf(HasSubstr("train.trace_steps is 4-9"), HasSubstr("from 0 to 3"), Not(HasSubstr(".json"))));
}

TEST_F(StepTraceTest, IsMadeOfNothingWhereNoneIsAskedFor) {
  Make("", 0, 3);
  MakeSteps(0, 3);
  EXPECT_EQ(Shown(), "");
}

}  // namespace
}  // namespace quartet
