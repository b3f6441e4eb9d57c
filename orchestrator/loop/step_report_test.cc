#include "orchestrator/loop/step_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace quartet {
namespace {

TEST(StepTable, ShowsWhatAStepWaitsForInPartsThatAddUp) {
  Metrics metrics;
  for (const auto& [name, seconds] : std::vector<std::pair<const char*, double>>{{"generate", 1},
                                                                                 {"score", 0.5},
                                                                                 {"values", 0.2},
                                                                                 {"log_probs", 0.25},
                                                                                 {"forwards", 0.25},
                                                                                 {"policy_update", 2},
                                                                                 {"critic_update", 1},
                                                                                 {"weight_sync", 0.25},
                                                                                 {"step", 4.5}}) {
    metrics.Set(std::string("time/") + name, seconds);
  }
  const std::string line = StepTableLine(3, metrics, "  1 min left");
  EXPECT_THAT(line, testing::HasSubstr("|     1.00    0.50     0.25    2.00    0.25    0.50    4.50  1 min left"));
  EXPECT_EQ(line.substr(0, 5), "    3") << "as in step_3";
  // Below its head.
  const std::string head = StepTableHead();
  EXPECT_EQ(head.find('|'), line.find('|'));
  EXPECT_EQ(head.find("step s") + 6, line.find("  1 min"));
}

TEST(StepTable, HasNoRewardWhereAnswersHaveNone) {
  Metrics metrics;
  const size_t end = StepTableHead().find("reward") + 6;
  EXPECT_EQ(StepTableLine(3, metrics, "").substr(0, end), "    3        -");
  metrics.Set("reward/mean", 0);
  EXPECT_EQ(StepTableLine(3, metrics, "").substr(0, end), "    3   0.0000");
}

TEST(StepTable, ShowsNoSignOfAKlThatIsNothing) {
  Metrics metrics;
  metrics.Set("kl/mean", -4e-6);
  EXPECT_THAT(StepTableLine(0, metrics, ""), testing::HasSubstr("  0.00000 "));
  metrics.Set("kl/mean", -1.23e-3);
  EXPECT_THAT(StepTableLine(0, metrics, ""), testing::HasSubstr(" -0.00123 "));
}

}  // namespace
}  // namespace quartet
