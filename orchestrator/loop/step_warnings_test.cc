#include "orchestrator/loop/step_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Warnings, OfAConfigurationAreOfWhatHardlyAnyoneMeans) {
  const auto warnings = [](const std::vector<std::string>& overrides) {
    return ConfigurationWarnings(LoadRunConfig("", overrides, "").value());
  };
  EXPECT_THAT(warnings({}), IsEmpty());
  EXPECT_THAT(warnings({"actor.learning_rate=1e-3"}), IsEmpty());
  EXPECT_THAT(warnings({"actor.optim=sgd", "actor.learning_rate=0.1"}), IsEmpty());
  EXPECT_THAT(warnings({"actor.learning_rate=5", "critic.learning_rate=0.1"}),
              ElementsAre(HasSubstr("actor.learning_rate is 5"), HasSubstr("critic.learning_rate is 0.1")));
}

TEST(Warnings, OfRewardsThatStayEqualComeOnce) {
  StepWarnings warnings;
  Metrics equal, other;
  equal.Set("reward/std", 0);
  equal.Set("reward/mean", 1);
  other.Set("reward/std", 0.5);
  for (int step = 1; step < StepWarnings::kEqualSteps; ++step) EXPECT_THAT(warnings.Of(equal), IsEmpty());
  EXPECT_THAT(warnings.Of(other), IsEmpty());
  for (int step = 1; step < StepWarnings::kEqualSteps; ++step) EXPECT_THAT(warnings.Of(equal), IsEmpty());
  EXPECT_THAT(warnings.Of(equal), ElementsAre(HasSubstr("all rewards of the last 5 steps were equal (1)")));
  EXPECT_THAT(warnings.Of(equal), IsEmpty());
}

TEST(Warnings, OfAPolicyThatHasLeftItsReferenceComeOnce) {
  StepWarnings warnings;
  Metrics near, far;
  near.Set("kl/mean", 3.2);
  far.Set("kl/mean", 12.5);
  EXPECT_THAT(warnings.Of(near), IsEmpty());
  EXPECT_THAT(warnings.Of(far), ElementsAre(HasSubstr("KL from its reference is 12.5 a token")));
  EXPECT_THAT(warnings.Of(far), IsEmpty());
}

}  // namespace
}  // namespace quartet
