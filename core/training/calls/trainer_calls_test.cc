#include "core/training/calls/trainer_calls.h"

#include <gtest/gtest.h>

#include "core/model/testing/smollm2.h"

namespace quartet {
namespace {

// The leader may have loaded before another rank has, and asks one whose load has failed until that has ended.
TEST(TrainerCalls, SayThatARankIsLoadingUntilItHasAnEngine) {
  const RankContext context;
  const auto group = RankGroup::Create(context, {.on_broken = [](const absl::Status& why) { FAIL() << why; }});
  ASSERT_TRUE(group->Start(nullptr, absl::ZeroDuration()).ok());
  const TrainerCalls calls("policy", "actor", TrainerConfig(), "/run", {}, HeadKind::kVocabulary, SmolLm2(),
                           SmolLm2().vocab_size, context, *group);
  for (const char* method :
       {"policy_trainer.Info", "policy_trainer.Forward", "policy_trainer.Update", "policy_trainer.Save"}) {
    const absl::Status status = group->Run(method, {RankInput()}, Deadline::Never()).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << method << ": " << status;
  }
}

}  // namespace
}  // namespace quartet
