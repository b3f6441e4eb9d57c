#include "rollout/calls/rollout_metrics.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "rollout/engine/duration_counter.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

// Each field with a value of its own.
EngineStats Numbered(int64_t first) {
  EngineStats stats;
  const auto* fields = EngineStats::descriptor();
  for (int i = 0; i < fields->field_count(); ++i) {
    const auto* field = fields->field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      EngineStats::GetReflection()->SetDouble(&stats, field, static_cast<double>(first + i) + 0.5);
    } else {
      EngineStats::GetReflection()->SetInt64(&stats, field, first + i);
    }
  }
  return stats;
}

TEST(RolloutMetrics, AddUpFieldByField) {
  EngineStats sum = Numbered(1);
  AddUp(Numbered(100), &sum);
  EXPECT_EQ(sum.steps(), 1 + 100);
  EXPECT_EQ(sum.running(), 3 + 102);
  EXPECT_EQ(sum.received_bytes(), 15 + 114);
  EXPECT_EQ(sum.prefill_tokens_per_second(), 16.5 + 115.5);
  EXPECT_EQ(sum.generated_tokens_per_second(), 17.5 + 116.5);
}

TEST(RolloutMetrics, AddUpDurationsBoundByBound) {
  DurationCounter one, other;
  one.Add(0.0005);
  one.Add(1);
  other.Add(1);
  other.Add(5000);
  EngineStats stats, sum;
  one.WriteTo(stats.mutable_to_first_token());
  AddUp(stats, &sum);
  other.WriteTo(stats.mutable_to_first_token());
  AddUp(stats, &sum);
  const DurationCounts& durations = sum.to_first_token();
  ASSERT_EQ(durations.counts_size(), static_cast<int>(DurationCounter::kBounds.size()) + 1);
  EXPECT_EQ(durations.counts(0), 1);
  EXPECT_EQ(durations.counts(9), 2);
  EXPECT_EQ(durations.counts(durations.counts_size() - 1), 1);
  EXPECT_DOUBLE_EQ(durations.seconds(), 0.0005 + 1 + 1 + 5000);
}

TEST(RolloutMetrics, HaveEachNameOnce) {
  GenerationState state;
  state.sum.set_blocks(8);
  state.sum.set_blocks_in_use(2);
  state.sum.set_held_places(200);
  state.sum.set_empty_places(10);
  state.sum.set_admitted_tokens(40);
  state.sum.set_cached_tokens(30);
  state.paused = true;
  std::map<std::string, double> metrics;
  std::set<std::string> prometheus;
  for (const RolloutMetric& metric : MetricsOf(state)) {
    if (!metric.name.empty()) {
      EXPECT_TRUE(metrics.emplace(metric.name, metric.value).second) << metric.name;
    }
    if (!metric.prometheus_name.empty()) {
      EXPECT_TRUE(prometheus.insert(metric.prometheus_name).second) << metric.prometheus_name;
      EXPECT_FALSE(metric.help.empty()) << metric.prometheus_name;
    }
  }
  EXPECT_EQ(metrics.at("kv_cache_usage"), 0.25);
  EXPECT_EQ(metrics.at("kv_cache_waste"), 0.05);
  EXPECT_EQ(metrics.at("prefix_cache_hit_rate"), 0.75);
  EXPECT_EQ(metrics.at("paused"), 1);
  EXPECT_EQ(metrics.at("asleep"), 0);
  // Of an engine that has done nothing.
  for (const RolloutMetric& metric : MetricsOf(GenerationState())) EXPECT_EQ(metric.value, 0) << metric.name;
}

TEST(RolloutMetrics, AreInPrometheussFormat) {
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
