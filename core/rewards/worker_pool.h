// Threads that score answers as they come, try again what fails, and never lose one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rewards/reward.h"

namespace quartet {

struct WorkerPoolOptions {
  std::string name;  // of the source, in the log
  int workers = 1;
  int max_batch = 1;  // answers of one call of the function
  int max_tries = 1;
  // Before the second try; twice that before each further one, at most `longest_pause`, and of each a random part
  // between a half and all.
  absl::Duration first_pause = absl::Seconds(1);
  absl::Duration longest_pause = absl::Seconds(30);
};

// Thread safe.
class WorkerPool {
 public:
  using Done = std::function<void(absl::StatusOr<Reward>)>;

  WorkerPool(std::unique_ptr<RewardFunction> function, const WorkerPoolOptions& options);
  // Ends what is under way; what was not done is done with CANCELLED.
  ~WorkerPool();

  // `done` is called once, from a thread of the pool: with the reward, or with the last try's error, how often it was
  // tried in front; with CANCELLED soon after `stop` is requested.
  void Submit(std::shared_ptr<const Answer> answer, std::stop_token stop, Done done);

  // RewardFunction::Check of the function.
  absl::Status Check() const;

  // Tries that have failed so far, whatever became of their answers, but for those that were ended. The log tells of
  // the first one, and then at most once a minute.
  int64_t failed_tries() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quartet
