// The plan of a run's memory, in its folder, for its page.
#pragma once

#include <stop_token>
#include <string>
#include <thread>

namespace quartet {

// Writes plan.json, what //orchestrator:plan --format=json says of run.textproto, on a thread of its own, at the lowest
// priority, once; at its own end it ends the planner. Where there is no such program nothing is written; what goes
// wrong is said in the log, and ends nothing.
class PlanWriter {
 public:
  // `program`: the planner's path.
  PlanWriter(const std::string& run_dir, const std::string& program);
  PlanWriter(const PlanWriter&) = delete;
  PlanWriter& operator=(const PlanWriter&) = delete;

 private:
  static void Run(const std::string& run_dir, const std::string& program, const std::stop_token& stop);

  std::jthread thread_;
};

}  // namespace quartet
