// The rollout's figures: each once, with the names that GetInfo and Prometheus have for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/prometheus/families.h"
#include "rollout/engine/engine_stats.pb.h"

namespace quartet {

// The rollout at a moment.
struct GenerationState {
  EngineStats sum;    // over all engines
  int64_t calls = 0;  // that wait or run
  uint64_t policy_version = 0;
  bool paused = false;
  bool asleep = false;
  bool weights_released = false;
};

// Adds each field of `stats` to that of `sum`.
void AddUp(const EngineStats& stats, EngineStats* sum);

struct RolloutMetric {
  std::string name;             // in GetInfo's metrics, behind "rollout/"; "": not there
  std::string prometheus_name;  // behind "quartet_"; a counter's ends in "_total"; "": not there
  std::string help;
  double value;
};

std::vector<RolloutMetric> MetricsOf(const GenerationState& state);

// For Prometheus. Names are vLLM's, with "quartet_" in place of its prefix, where it has the figure too. `model_name`
// is their label.
void AddRolloutFigures(const GenerationState& state, const std::string& model_name, MetricFamilies* families);

}  // namespace quartet
