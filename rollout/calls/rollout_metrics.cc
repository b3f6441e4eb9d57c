#include "rollout/calls/rollout_metrics.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "rollout/engine/duration_counter.h"

namespace quartet {
namespace {

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

void AddUp(const DurationCounts& durations, DurationCounts* sum) {
  for (int i = 0; i < durations.counts_size(); ++i) {
    if (i == sum->counts_size()) sum->add_counts(0);
    sum->set_counts(i, sum->counts(i) + durations.counts(i));
  }
  sum->set_seconds(sum->seconds() + durations.seconds());
}

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

void AddUp(const EngineStats& stats, EngineStats* sum) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *EngineStats::GetReflection();
  const google::protobuf::Descriptor& fields = *EngineStats::descriptor();
  for (int i = 0; i < fields.field_count(); ++i) {
    const FieldDescriptor* field = fields.field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      AddUp(static_cast<const DurationCounts&>(reflection.GetMessage(stats, field)),
            static_cast<DurationCounts*>(reflection.MutableMessage(sum, field)));
      continue;
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      reflection.SetDouble(sum, field, reflection.GetDouble(*sum, field) + reflection.GetDouble(stats, field));
    } else {
      reflection.SetInt64(sum, field, reflection.GetInt64(*sum, field) + reflection.GetInt64(stats, field));
    }
  }
}

std::vector<RolloutMetric> MetricsOf(const GenerationState& state) {
  const EngineStats& sum = state.sum;
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  return {
      {"calls", "num_calls", "Calls that wait or run, also those that a pause keeps from beginning.",
       count(state.calls)},
      {"running", "num_requests_running", "Sequences in the running batch.", count(sum.running())},
      {"waiting", "num_requests_waiting", "Sequences that wait for a place in it.", count(sum.waiting())},
      {"kv_cache_usage", "kv_cache_usage_perc", "Share of the KV cache's blocks that sequences hold; 1 is all.",
       Share(sum.blocks_in_use(), sum.blocks())},
      {"kv_cache_waste", "", "", Share(sum.empty_places(), sum.held_places())},
      {"", "kv_cache_held_places_total", "Places for tokens in the blocks that sequences held, summed over steps.",
       count(sum.held_places())},
      {"", "kv_cache_empty_places_total", "Those of them that held no token.", count(sum.empty_places())},
      {"preemptions", "num_preemptions_total", "Sequences sent back to waiting.", count(sum.preemptions())},
      {"prefix_cache_hit_rate", "", "", Share(sum.cached_tokens(), sum.admitted_tokens())},
      {"", "prefix_cache_queries_total", "Tokens of admitted sequences.", count(sum.admitted_tokens())},
      {"", "prefix_cache_hits_total", "Those of them that the cache held already.", count(sum.cached_tokens())},
      {"prefill_tokens", "prompt_tokens_total", "Prefill tokens computed.", count(sum.prefill_tokens())},
      {"generated_tokens", "generation_tokens_total", "Tokens generated.", count(sum.generated_tokens())},
      {"prefill_tokens_per_second", "prompt_tokens_per_second", "Prefill tokens a second, of late, while forwards ran.",
       sum.prefill_tokens_per_second()},
      {"generated_tokens_per_second", "generation_tokens_per_second",
       "Generated tokens a second, of late, while forwards ran.", sum.generated_tokens_per_second()},
      {"", "policy_version", "Version of the weights in use.", count(static_cast<int64_t>(state.policy_version))},
      {"paused", "paused", "1 while no forward is made.", count(state.paused)},
      {"asleep", "asleep", "1 while the KV cache is given back.", count(state.asleep)},
      {"weights_released", "weights_released", "1 while the weights are given back.", count(state.weights_released)},
  };
}

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
