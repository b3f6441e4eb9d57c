// The sources of rewards that need no model, as configured: rules, servers, commands and code, with their threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rewards/reward.h"
#include "core/rewards/worker_pool.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Thread safe.
class AnswerSources {
 public:
  // Of a resolved configuration. Errors name the field; FAILED_PRECONDITION where there can be no sandbox for code.
  static absl::StatusOr<std::unique_ptr<AnswerSources>> Create(const RewardConfig& config);

  // By the first source of which it is known by now that it cannot give rewards, after its field: INVALID_ARGUMENT;
  // else UNAVAILABLE, where servers were not reached yet.
  absl::Status Check() const;
  // The same, but servers are waited for. INVALID_ARGUMENT where one cannot be reached for so long.
  absl::Status CheckFor(absl::Duration patience) const;

  // How many they are.
  size_t size() const { return pools_.size(); }

  // WorkerPool::failed_tries of all of them.
  int64_t failed_tries() const;

  // `done` is called once for each of them that is for the answer's prompt (IsFor), with the index into reward.source:
  // from their threads, or at once with 0, and no score, for an answer in which the source's reasoning_delimiter is
  // not. Errors as those of WorkerPool::Submit. Those of sources with a reasoning_delimiter have kUnfinishedReasoning.
  void Score(const std::shared_ptr<const Answer>& answer, const std::stop_token& stop,
             const std::function<void(int source, absl::StatusOr<Reward>)>& done);

 private:
  struct Pool {
    int source;
    RewardSource options;
    std::unique_ptr<WorkerPool> workers;
  };
  std::vector<Pool> pools_;
};

}  // namespace quartet
