// How long a PPO step takes at least, at stated rates. An estimate from the models' shapes: nothing is run for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/plan.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Of one GPU, in a second. Zero: not known.
struct GpuRates {
  double bf16_flops = 0;
  double fp32_flops = 0;
  double bytes = 0;  // from and to its memory
};

// Of cluster.gpu.
GpuRates RatesOf(const RunConfig& config);

// One rank's part of a PPO step, in which every prompt and every answer is as long as it may be.
struct ServiceTime {
  std::string service;
  double flops = 0;
  double bytes = 0;                   // weights and cache, read to decode
  double computing_seconds = 0;       // each stage at the rate that it is bound by
  std::optional<double> collectives;  // none where a rate of the cluster is not stated
  // ZeRO gathers and reduces beside the computing; what tensor-parallel ranks send is waited for.
  double seconds = 0;
};

struct StepTime {
  std::vector<ServiceTime> services;
  // First the rollout, then the other services side by side: as long as the GPU takes that has most of them.
  double generating_seconds = 0;
  double training_seconds = 0;
  double seconds() const { return generating_seconds + training_seconds; }
};

// `plan` is of `config`. INVALID_ARGUMENT where a planned service is on CPUs or a rate is missing, with what to set; a
// model's own errors else.
absl::StatusOr<StepTime> EstimateStep(const RunConfig& config, const Plan& plan, const GpuRates& rates);

}  // namespace quartet
