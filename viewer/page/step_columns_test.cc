#include "viewer/page/step_columns.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "nlohmann/json.hpp"

namespace quartet {
namespace {

using Json = nlohmann::json;

Json JsonOf(const StepColumns& columns) {
  std::string text = "{";
  columns.AppendJson(&text);
  const Json json = Json::parse(text + "}", nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << text;
  return json;
}

Metrics Values(std::initializer_list<std::pair<const char*, double>> values) {
  Metrics metrics;
  for (const auto& [name, value] : values) metrics.Set(name, value);
  return metrics;
}

TEST(StepColumns, KeepStepsOneByOneWhileThereAreFew) {
  StepColumns columns;
  columns.Add(0, Values({{"reward/mean", 0.25}, {"time/step", 2}, {"time/unix", 1002}, {"eval/held_out/pass@1", 1}}));
  columns.Add(1, Values({{"reward/mean", 0.5}, {"time/step", 2}, {"time/unix", 1009.5}, {"kl/mean", 1e-5}}));
  const Json json = JsonOf(columns);
  EXPECT_EQ(json["x"], Json({0, 1}));
  EXPECT_EQ(json["n"], Json({1, 1}));
  EXPECT_EQ(json["t"], Json({2.0, 9.5}));
  EXPECT_EQ(json["cols"]["reward/mean"], Json({0.25, 0.5}));
  EXPECT_EQ(json["cols"]["kl/mean"], Json({nullptr, 1e-5}));
  EXPECT_EQ(json["cols"]["time/step"], 2) << "one number, as it never changes";
  EXPECT_FALSE(json["cols"].contains("eval/held_out/pass@1")) << "an evaluation";
  EXPECT_EQ(json["stats"]["reward/mean"], Json({0.25, 0.5, 0.25, 0.5}));
  EXPECT_TRUE(json["lo"].empty());
  EXPECT_EQ(columns.started(), 1000);
}

TEST(StepColumns, LeaveOutWhatIsNotFinite) {
  StepColumns columns;
  columns.Add(0, Values({{"kl/mean", 1}}));
  columns.Add(1, Values({{"kl/mean", std::nan("")}}));
  columns.Add(2, Values({{"kl/mean", std::numeric_limits<double>::infinity()}}));
  columns.Add(3, Values({{"kl/mean", 2}}));
  EXPECT_EQ(JsonOf(columns)["cols"]["kl/mean"], Json({1, nullptr, nullptr, 2}));
}

TEST(StepColumns, WithoutTimesAddUpSteps) {
  StepColumns columns;
  columns.Add(0, Values({{"time/step", 1.5}}));
  columns.Add(1, Values({{"time/step", 2}}));
  EXPECT_EQ(JsonOf(columns)["t"], Json({1.5, 3.5}));
  EXPECT_EQ(columns.started(), 0);
}

// Whatever the length of a run: the newest steps singly, those before them in buckets of one size, whose means, weighed
// by their steps, are the mean of all.
TEST(StepColumns, AreBoundedAndLoseNoStep) {
  constexpr int64_t kSteps = 10'000;
  StepColumns columns;
  double sum = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const double value = std::sin(0.01 * static_cast<double>(step)) + (step == 777 ? 50 : 0);
    sum += value;
    columns.Add(step,
                Values({{"reward/mean", value}, {"time/step", 1}, {"time/checkpoint", step % 100 == 0 ? 8.0 : 0}}));
  }
  const Json json = JsonOf(columns);
  const size_t points = json["x"].size();
  EXPECT_LE(points, StepColumns::kNewest + StepColumns::kBuckets);
  EXPECT_EQ(json["x"].back(), kSteps - 1);
  EXPECT_EQ(json["x"][points - StepColumns::kNewest], kSteps - StepColumns::kNewest);
  int64_t steps = 0;
  double weighed = 0, greatest = 0;
  for (size_t i = 0; i < points; ++i) {
    const auto n = json["n"][i].get<int64_t>();
    EXPECT_TRUE(n == 1 || n == columns.bucket_steps() || i + 1 + StepColumns::kNewest == points) << i << ": " << n;
    steps += n;
    EXPECT_EQ(json["x"][i], steps - 1);
    weighed += static_cast<double>(n) * json["cols"]["reward/mean"][i].get<double>();
    if (!json["hi"]["reward/mean"][i].is_null())
      greatest = std::max(greatest, json["hi"]["reward/mean"][i].get<double>());
  }
  EXPECT_EQ(steps, kSteps);
  EXPECT_NEAR(weighed / kSteps, sum / kSteps, 1e-3);
  EXPECT_NEAR(greatest, 51, 0.01) << "the spike of step 777";
  EXPECT_FALSE(json["lo"].contains("time/checkpoint"));
  EXPECT_EQ(columns.steps(), kSteps);
}

}  // namespace
}  // namespace quartet
