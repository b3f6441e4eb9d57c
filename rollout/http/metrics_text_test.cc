#include "rollout/http/metrics_text.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

TEST(MetricsText, AreInPrometheussFormat) {
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
  const std::string text = MetricsText(state, "a\"b");
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
  EXPECT_THAT(text, HasSubstr("quartet_paused{model_name=\"a\\\"b\"} 1\n"));
}

}  // namespace
}  // namespace quartet
