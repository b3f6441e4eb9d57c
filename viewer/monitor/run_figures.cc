#include "viewer/monitor/run_figures.h"

#include <prometheus/histogram.h>

#include <cctype>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/run_folder/records/record_fields.h"

namespace quartet {
namespace {

using prometheus::MetricType;

constexpr char kTime[] = "time/";

const prometheus::Histogram::BucketBoundaries& Buckets() {
  static const auto* const buckets = new prometheus::Histogram::BucketBoundaries(DurationBuckets(1e-3, 1e4));
  return *buckets;
}

std::string NameOf(const std::string& metric) {
  std::string name = "quartet_run_";
  for (const char c : metric) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

// The part behind the last slash, and what stands before it.
std::pair<std::string, std::string> SplitLast(const std::string& name) {
  const size_t slash = name.rfind('/');
  return {name.substr(0, slash), name.substr(slash + 1)};
}

}  // namespace

RunFigures::Steps::Steps()
    : whole(prometheus::BuildHistogram()
                .Name("quartet_run_step_duration_seconds")
                .Help("Steps, whole.")
                .Register(registry)
                .Add({}, Buckets())),
      phases(prometheus::BuildHistogram()
                 .Name("quartet_run_phase_duration_seconds")
                 .Help("Parts of steps, by phase; some go on beside each other.")
                 .Register(registry)) {}

RunFigures::RunFigures(const std::string& run_dir)
    : metrics_(run_dir + "/metrics.jsonl"), evaluations_(run_dir + "/evaluations.jsonl"), events_(run_dir) {}

absl::Status RunFigures::Add(MetricFamilies* families) {
  std::string lines;
  QUARTET_RETURN_IF_ERROR(metrics_.Read(&lines));
  if (metrics_.began_anew()) steps_ = std::make_unique<Steps>();
  for (const nlohmann::json& record : Records(lines)) {
    ++steps_->count;
    steps_->newest.clear();
    for (const auto& [name, value] : record.items()) {
      if (!value.is_number()) continue;
      const auto number = value.get<double>();
      steps_->newest[name] = number;
      if (name == "time/step") {
        steps_->whole.Observe(number);
      } else if (absl::StartsWith(name, kTime) && name != "time/unix") {
        steps_->phases.Add({{"phase", name.substr(sizeof(kTime) - 1)}}, Buckets()).Observe(number);
      }
    }
  }
  QUARTET_RETURN_IF_ERROR(evaluations_.Read(&lines));
  if (evaluations_.began_anew()) evaluated_.clear();
  for (const nlohmann::json& record : Records(lines)) {
    for (const auto& [name, value] : record.items()) {
      if (value.is_number() && name != "step") evaluated_[{TextIn(record, "set"), name}] = value.get<double>();
    }
  }
  QUARTET_RETURN_IF_ERROR(events_.Read());

  AddFigure(MetricType::Counter, "quartet_run_steps_total", "Steps that have been made.", {}, steps_->count, families);
  for (const auto& [kind, count] : events_.Counts()) {
    AddFigure(MetricType::Counter, "quartet_run_events_total", "Warnings, restarts and other events, by kind.",
              {{"kind", kind}}, static_cast<double>(count), families);
  }
  if (steps_->count > 0) AddSteps(families);
  for (const auto& [place, value] : evaluated_) {
    AddFigure(MetricType::Gauge, "quartet_run_evaluation", "Of the newest evaluation, as in evaluations.jsonl.",
              {{"set", place.first}, {"metric", place.second}}, value, families);
  }
  return absl::OkStatus();
}

void RunFigures::AddSteps(MetricFamilies* families) const {
  for (const prometheus::MetricFamily& family : steps_->registry.Collect()) families->push_back(family);
  for (const auto& [name, value] : steps_->newest) {
    if (name == "step") {
      AddFigure(MetricType::Gauge, "quartet_run_step", "The newest step, counted from 1.", {}, value + 1, families);
    } else if (name == "time/unix") {
      AddFigure(MetricType::Gauge, "quartet_run_last_step_timestamp_seconds", "When the newest step ended, since 1970.",
                {}, value, families);
    } else if (absl::StartsWith(name, kTime) || absl::StartsWith(name, "eval/")) {
      continue;  // said above, and of evaluations.jsonl
    } else if (absl::StartsWith(name, "memory/")) {
      const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('/', 2));
      if (parts.size() < 3) continue;
      AddFigure(MetricType::Gauge, "quartet_run_memory_peak_bytes",
                "Most that a rank of the service has held since it was started, by what for.",
                {{"service", parts[1]}, {"category", parts[2]}}, value, families);
    } else if (absl::StartsWith(name, "source/")) {
      const auto [source, metric] = SplitLast(name.substr(sizeof("source/") - 1));
      AddFigure(MetricType::Gauge, "quartet_run_source", "Of the newest step's answers, by the prompts' source.",
                {{"source", source}, {"metric", metric}}, value, families);
    } else {
      AddFigure(MetricType::Gauge, NameOf(name), absl::StrCat("Of the newest step, ", name, " of metrics.jsonl."), {},
                value, families);
    }
  }
}

}  // namespace quartet
