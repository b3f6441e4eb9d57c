// Which model an evaluation is of.
#pragma once

#include <cstdint>
#include <string>

#include "proto/run_config.pb.h"

namespace quartet {

struct EvaluatedModel {
  std::string name;   // as people call it: "SmolLM2-135M", or of a run's policy "RUN/step_8"
  int64_t step = -1;  // after which, from 0; -1: of no run, or before its training
};

// The model in a folder. Links are followed: RUN/checkpoints/latest is the checkpoint that it names.
EvaluatedModel EvaluatedModelIn(const std::string& folder);

// The policy of a run after `step`, from 0; -1: before training.
EvaluatedModel EvaluatedModelOf(const RunConfig& config, int64_t step);

}  // namespace quartet
