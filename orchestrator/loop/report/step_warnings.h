// What a person who trains would want to be told of a run that goes on all the same.
#pragma once

#include <string>
#include <vector>

#include "core/run_folder/records/metrics.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Of a resolved configuration: values that hardly anyone means, one sentence each.
std::vector<std::string> ConfigurationWarnings(const RunConfig& config);

// Of the steps of a run, each thing once. One thread.
class StepWarnings {
 public:
  // `config` is resolved, and outlives it.
  explicit StepWarnings(const RunConfig& config) : config_(config) {}

  // What the metrics of a further step show: that nothing could be learned from the last kIdleSteps steps, and why;
  // that nearly all answers are left out of the loss; that the policy has gone farther from its reference than is of
  // any use; or that tries at scoring answers fail.
  std::vector<std::string> Of(const Metrics& metrics);

  static constexpr int kIdleSteps = 5;
  static constexpr double kMostKl = 10;           // a token
  static constexpr double kMostExcluded = 0.75;   // of a step's answers
  static constexpr double kMostUnfinished = 0.9;  // of the answers that a source is for

 private:
  // Of one step; "" where something could be learned.
  std::string WhyIdle(const Metrics& metrics) const;

  const RunConfig& config_;
  int idle_steps_ = 0;
  bool said_idle_ = false, said_excluded_ = false, said_kl_ = false, said_failed_ = false;
};

}  // namespace quartet
