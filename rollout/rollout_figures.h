// The rollout's figures for Prometheus.
#pragma once

#include <string>

#include "core/metrics/families.h"
#include "rollout/rollout_metrics.h"

namespace quartet {

// Names are vLLM's, with "quartet_" in place of its prefix, where it has the figure too. `model_name` is their label.
void AddRolloutFigures(const GenerationState& state, const std::string& model_name, MetricFamilies* families);

}  // namespace quartet
