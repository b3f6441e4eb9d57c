// The rollout's figures in Prometheus's text format.
#pragma once

#include <string>

#include "rollout/rollout_metrics.h"

namespace quartet {

// Names are vLLM's, with "quartet_" in place of its prefix, where it has the figure too. `model_name` is their label.
std::string MetricsText(const GenerationState& state, const std::string& model_name);

}  // namespace quartet
