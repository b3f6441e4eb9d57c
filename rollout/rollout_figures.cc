#include "rollout/rollout_figures.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rollout/engine/duration_counter.h"

namespace quartet {
namespace {

void AddDurations(const std::string& name, const std::string& help, const std::string& model_name,
                  const DurationCounts& durations, MetricFamilies* families) {
  prometheus::MetricFamily& family = families->emplace_back();
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Histogram;
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.label.push_back({"model_name", model_name});
  prometheus::ClientMetric::Histogram& histogram = metric.histogram;
  for (int i = 0; i < durations.counts_size(); ++i) {
    histogram.sample_count += durations.counts(i);
    const bool last = i == static_cast<int>(DurationCounter::kBounds.size());
    histogram.bucket.push_back(
        {.cumulative_count = histogram.sample_count,
         .upper_bound = last ? std::numeric_limits<double>::infinity() : DurationCounter::kBounds[i]});
  }
  histogram.sample_sum = durations.seconds();
}

}  // namespace

void AddRolloutFigures(const GenerationState& state, const std::string& model_name, MetricFamilies* families) {
  for (const RolloutMetric& metric : MetricsOf(state)) {
    if (metric.prometheus_name.empty()) continue;
    const bool counts = absl::EndsWith(metric.prometheus_name, "_total");
    AddFigure(counts ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge,
              absl::StrCat("quartet_", metric.prometheus_name), metric.help, {{"model_name", model_name}}, metric.value,
              families);
  }
  AddDurations("quartet_time_to_first_token_seconds",
               "From when a sequence came to its first token; waiting for a place in the batch included.", model_name,
               state.sum.to_first_token(), families);
  AddDurations("quartet_inter_token_latency_seconds",
               "From one token of a sequence to the next; pauses and preemptions included.", model_name,
               state.sum.between_tokens(), families);
}

}  // namespace quartet
