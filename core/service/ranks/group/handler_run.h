// One run of a handler on this rank, from its place in a queue to its output.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/service/ranks/group/rank_group.h"

namespace quartet {

// Thread safe.
class HandlerRun {
 public:
  // `handler` outlives it. With `asks` it waits, when its turn has come, until it is permitted or withdrawn.
  HandlerRun(const RankGroup::Handler& handler, RankInput input, bool asks = false)
      : handler_(handler), input_(std::move(input)), permitted_(!asks) {}

  // To be called once, by whoever runs it. Where it is destroyed instead, the output is CANCELLED.
  static std::function<void()> WorkOf(std::shared_ptr<HandlerRun> run);

  // Whether its turn has come, or it will not begin any more; false after `timeout`.
  bool AwaitTurn(absl::Duration timeout);
  void Permit();

  // If it has not begun, it never will, and `status` is its output.
  void Withdraw(const absl::Status& status);

  // The output, which is there once; nothing after `timeout`.
  std::optional<absl::StatusOr<RankOutput>> Take(absl::Duration timeout);
  // However long that takes.
  absl::StatusOr<RankOutput> Wait();

 private:
  void Run();
  void Put(absl::StatusOr<RankOutput> output);

  const RankGroup::Handler& handler_;
  RankInput input_;  // of whoever runs it
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool turn_ = false;
  bool permitted_;
  bool begun_ = false;  // or never will
  std::optional<absl::StatusOr<RankOutput>> output_;
};

}  // namespace quartet
