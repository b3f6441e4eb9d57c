// The metrics of a run as the page draws them: the newest steps one by one, those before them in buckets that are
// merged as the run grows, so that what is kept is bounded.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/run_folder/records/metrics.h"

namespace quartet {

// One thread.
class StepColumns {
 public:
  static constexpr int64_t kNewest = 1024;  // steps that stand for themselves
  static constexpr size_t kBuckets = 1024;  // at most, of all steps before those

  // The steps of a run in their order, `step` counted from 1. Values that are not finite are left out.
  void Add(int64_t step, const Metrics& metrics);

  int64_t steps() const { return steps_; }
  // Unix seconds of the beginning of the first step, as time/unix and time/step say; 0 where steps have no time.
  double started() const { return started_; }
  // At the end of the latest step.
  double ended() const { return ended_; }
  // The step under way at a time in Unix seconds: the first one that ended then or later (of a bucket its last step),
  // or the latest one where none has. -1 before the first step began, and where steps have no time.
  int64_t StepAt(double time) const;

  // {"x", "n", "t", "cols", "lo", "hi", "stats"} without its braces: of each point its last step, how many steps it
  // stands for and the seconds until then; each metric's means, for those whose spikes matter their least and greatest
  // values within a bucket; first, latest, least and greatest of all steps. A metric that never changes is one number.
  void AppendJson(std::string* out) const;
  // Steps of one bucket; 1 where all stand for themselves.
  int64_t bucket_steps() const { return old_.empty() ? 1 : size_; }

 private:
  struct Cell {
    double sum = 0;
    int32_t count = 0;
    float least = 0, greatest = 0;
  };
  struct Bucket {
    int64_t last_step = 0;
    int64_t steps = 0;
    double seconds = 0;  // since the run began, at its end
    std::vector<Cell> cells;
  };
  struct Stats {
    double first = 0, latest = 0, least = 0, greatest = 0;
    int64_t count = 0;
  };

  static void Merge(const Bucket& from, Bucket* into);

  std::vector<std::string> names_;
  std::map<std::string, size_t, std::less<>> index_;
  std::vector<Stats> stats_;
  std::vector<Bucket> old_;  // of size_ steps each, but for the last one
  int64_t size_ = 1;
  std::deque<Bucket> newest_;
  int64_t steps_ = 0, last_step_ = -1;
  double started_ = 0, ended_ = 0, elapsed_ = 0;
};

}  // namespace quartet
