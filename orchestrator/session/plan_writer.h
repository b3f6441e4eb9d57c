// The plan of a run's memory, in its folder, for its page.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace quartet {

// Writes plan.json, what //orchestrator:plan --format=json says of run.textproto, on a thread of its own, at the lowest
// priority, once. Where there is no such program nothing is written; what goes wrong is said in the log, and ends
// nothing.
class PlanWriter {
 public:
  // `program`: the planner's path.
  PlanWriter(const std::string& run_dir, const std::string& program);
  // Ends the planner.
  ~PlanWriter();
  PlanWriter(const PlanWriter&) = delete;
  PlanWriter& operator=(const PlanWriter&) = delete;

 private:
  void Run(const std::string& run_dir, const std::string& program);

  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace quartet
