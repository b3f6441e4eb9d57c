// The quickstart as a newcomer runs it: four services with two ranks each, from nothing to a solved task.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

double MeanReward(const std::vector<nlohmann::json>& metrics, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += metrics[i].at("reward/mean").get<double>();
  return sum / static_cast<double>(end - begin);
}

TEST(Quickstart, LearnsItsTask) {
  ProcessHarness harness;
  const std::string run_dir = harness.Path("run");
  const auto outcome = harness.Run("quickstart/quickstart", {"--run_dir=" + run_dir, "--seed=1"}, absl::Minutes(10));
  ASSERT_TRUE(outcome.ended) << outcome.output;
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* text : {"first example, as the model reads it: ", "first prompt, as the model reads it: ",
                           " s left\n", "checkpoints/latest/policy"}) {
    EXPECT_THAT(outcome.output, testing::HasSubstr(text));
  }

  const std::vector<nlohmann::json> metrics = ReadRecords(run_dir + "/metrics.jsonl");
  ASSERT_GE(metrics.size(), 6u);
  EXPECT_LE(MeanReward(metrics, 0, 3), 0.5);
  EXPECT_GE(MeanReward(metrics, metrics.size() - 3, metrics.size()), 0.9);
  EXPECT_LT(metrics.front().at("eval/heldout/pass@1").get<double>(), 0.5);
  EXPECT_GE(metrics.back().at("eval/heldout/pass@1").get<double>(), 0.85);
  ASSERT_EQ(ReadRecords(run_dir + "/state.json").size(), 1);
  EXPECT_EQ(ReadRecords(run_dir + "/state.json").front().at("state"), "finished");
  for (const char* folder : {"", "/start/sft"}) {
    EXPECT_TRUE(std::filesystem::exists(run_dir + folder + "/report.html")) << folder;
  }
  EXPECT_TRUE(std::filesystem::exists(run_dir + "/checkpoints/latest/policy/model.safetensors"));
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), testing::IsEmpty());
}

TEST(Quickstart, RefusesWhatCannotRunBeforeItMakesAnything) {
  ProcessHarness harness;
  const std::string run_dir = harness.Path("run");
  const auto outcome =
      harness.Run("quickstart/quickstart", {"--run_dir=" + run_dir, "--page=nonsense"}, absl::Minutes(1));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, testing::HasSubstr("monitor.listen"));
  EXPECT_THAT(outcome.output, testing::HasSubstr("nonsense"));
  const auto taught =
      harness.Run("quickstart/quickstart", {"--run_dir=" + run_dir, "--preset=distill"}, absl::Minutes(1));
  EXPECT_EQ(taught.exit_code, 2);
  EXPECT_THAT(taught.output, testing::HasSubstr("--preset=distill learns from a teacher"));
  EXPECT_FALSE(std::filesystem::exists(run_dir)) << "the next try finds it free";
}

}  // namespace
}  // namespace quartet
