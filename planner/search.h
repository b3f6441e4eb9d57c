// What would make a run fit, and what it fits on: configurations that differ from a given one, planned again.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/plan.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Some overrides ("actor.zero_stage=3"), and configuration and plan with them.
struct Suggestion {
  std::vector<std::string> overrides;
  RunConfig config;
  Plan plan;
};

// A resolved configuration with some fields changed, resolved again.
absl::StatusOr<RunConfig> WithOverrides(const RunConfig& config, const std::vector<std::string>& overrides,
                                        Program program = Program::kPpo);

// The plan of such a configuration.
absl::StatusOr<Suggestion> PlanWith(Planner& planner, const RunConfig& config,
                                    const std::vector<std::string>& overrides);

// For a configuration that does not fit: each single change, as small as it can be, with which it fits; where there
// is none, a set of changes, none of which can be left out. Empty: nothing that was tried helps.
absl::StatusOr<std::vector<Suggestion>> Suggest(Planner& planner, const RunConfig& config, const Plan& plan);

// The fewest GPUs that the run fits on with every service that has device "cuda" on all of them. NOT_FOUND: not even
// on the most that were tried.
absl::StatusOr<Suggestion> FewestGpus(Planner& planner, const RunConfig& config);

// For a configuration without a cluster: of each known GPU the fewest on which the run fits with every service that has
// a model on all of them, in one node of 1, 2, 4 or 8 or in nodes of 8; the fewest GPUs first. Those on which it does
// not fit, or that the configuration refuses, are left out.
absl::StatusOr<std::vector<Suggestion>> WhatToRent(Planner& planner, const RunConfig& config);

// The fullest micro-batches, of actor and critic alike, with which the run fits: in sequences of the greatest length,
// as max_tokens_per_micro_batch, or as micro_train_batch_size where a trainer counts sequences.
absl::StatusOr<Suggestion> LargestMicroBatch(Planner& planner, const RunConfig& config);

}  // namespace quartet
