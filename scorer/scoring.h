// One call's answers on their way through all sources. gRPC-free.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rewards/labels/labels.h"
#include "proto/run_config.pb.h"
#include "proto/scorer.pb.h"
#include "scorer/answer_sources.h"

namespace quartet {

// Puts each answer's reply together, and has it ready as soon as all of its sources have spoken. Sources never wait for
// the client. Held by shared pointers: what a source is at when the call ends finds it closed. Thread safe.
class Scoring : public std::enable_shared_from_this<Scoring> {
 public:
  // Both outlive it.
  Scoring(const RunConfig& config, AnswerSources* sources)
      : run_(config), config_(config.reward()), sources_(sources), of_tokens_(GivesTokenRewards(config_)) {}

  // Takes the texts out of the next item, but for where its prompt is from, and begins.
  void Add(ScoreItem* item);
  // Adds the value of a model, reward.source[source], to the answer that was added as number `item` and that it is for.
  void AddModel(size_t item, int source, float value);

  // No further item is added.
  void EndItems();

  // OK while nothing stops the call, naming the sequence and the source: one, of a weight other than 0, that failed
  // with reward.on_error "stop", that cannot read a label (INVALID_ARGUMENT), or whose earlier rewards cannot be
  // trusted (DATA_LOSS).
  absl::Status status() const;
  // Waits for the next reply. Nothing once all are given out, status() is an error, or it is closed.
  std::optional<ScoreReply> Next();
  // Waits until Next has nothing more to give, or `timeout`; true: the former.
  bool WaitForLast(absl::Duration timeout);
  // Ends it: sources that are at it are told to stop.
  void Close();

 private:
  struct Item {
    uint64_t index;  // of its sequence
    int64_t tokens;  // action tokens of it
    // By source; nothing where it has not spoken, or is for other prompts (reward.source.only).
    std::vector<std::optional<absl::StatusOr<Reward>>> parts;
    int missing;  // sources that are for its prompt and have not spoken
  };
  // With the mutex held.
  void Take(size_t item, int source, absl::StatusOr<Reward> reward);
  // Has its reply ready, where all have spoken.
  void FinishWhereComplete(const Item& item);
  // Once all have spoken. Parts are added in the configuration's order, whichever came first: equal answers have
  // rewards of equal bits. OUT_OF_RANGE where the sum is beyond fp32.
  absl::StatusOr<ScoreReply> Reply(const Item& item) const;
  void Stop(absl::Status status);
  bool Over() const { return closed_ || !status_.ok() || (all_added_ && given_ == items_.size()); }

  const RunConfig& run_;
  const RewardConfig& config_;
  AnswerSources* const sources_;
  const bool of_tokens_;  // replies say what each token is worth
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::stop_source stop_;
  std::vector<Item> items_;
  bool all_added_ = false;
  std::deque<ScoreReply> ready_;
  size_t given_ = 0;  // of items_
  absl::Status status_;
  bool closed_ = false;
};

}  // namespace quartet
