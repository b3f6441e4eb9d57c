#include "rollout/rollout_figures.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rollout/engine/duration_counter.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

TEST(RolloutFigures, AreInPrometheussFormat) {
  GenerationState state;
  state.sum.set_running(2);
  state.sum.set_waiting(1);
  state.sum.set_blocks(8);
  state.sum.set_blocks_in_use(2);
  state.sum.set_held_places(640);
  state.sum.set_empty_places(20);
  state.sum.set_generated_tokens(30);
  state.sum.set_generated_tokens_per_second(1.5);
  state.policy_version = 4;
  state.paused = true;
  DurationCounter durations;
  durations.Add(0.04);
  durations.Add(0.2);
  durations.Add(2000);
  durations.WriteTo(state.sum.mutable_to_first_token());
  MetricFamilies families;
  AddRolloutFigures(state, "a\"b", &families);
  const std::string text = MetricsText(families);
  EXPECT_THAT(text, HasSubstr("# TYPE quartet_num_requests_running gauge\n"
                              "quartet_num_requests_running{model_name=\"a\\\"b\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("quartet_num_requests_waiting{model_name=\"a\\\"b\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("quartet_kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE quartet_kv_cache_held_places_total counter\n"
                              "quartet_kv_cache_held_places_total{model_name=\"a\\\"b\"} 640\n"));
  EXPECT_THAT(text, HasSubstr("quartet_kv_cache_empty_places_total{model_name=\"a\\\"b\"} 20\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE quartet_generation_tokens_total counter\n"
                              "quartet_generation_tokens_total{model_name=\"a\\\"b\"} 30\n"));
  EXPECT_THAT(text, HasSubstr("quartet_generation_tokens_per_second{model_name=\"a\\\"b\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("quartet_policy_version{model_name=\"a\\\"b\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE quartet_time_to_first_token_seconds histogram\n"
                              "quartet_time_to_first_token_seconds_count{model_name=\"a\\\"b\"} 3\n"
                              "quartet_time_to_first_token_seconds_sum{model_name=\"a\\\"b\"} 2000.24\n"));
  for (const auto& [bound, count] : {std::pair("0.025", 0), {"0.05", 1}, {"0.25", 2}, {"1000", 2}, {"+Inf", 3}}) {
    EXPECT_THAT(text, HasSubstr("quartet_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"" +
                                std::string(bound) + "\"} " + std::to_string(count) + "\n"));
  }
  EXPECT_THAT(text, HasSubstr("quartet_paused{model_name=\"a\\\"b\"} 1\n"));
}

}  // namespace
}  // namespace quartet
