// One rank's part of the rollout service: it applies the leader's work to its engine and makes the engine's forwards,
// and stages the weights of the next version meanwhile. LibTorch-free.
//
// Ranks that step together have no one who leads them from forward to forward. While there is something to compute,
// they agree before each forward on the batches of work that have come to all of them; else each applies the next batch
// by itself, and nobody waits in a collective. Since they get the same batches, they make the same forwards.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/memory/ledger.h"
#include "core/rank/rank_context.h"
#include "core/service/ranks/group/rank_group.h"
#include "proto/run_config.pb.h"
#include "rollout/calls/rollout_rank.pb.h"
#include "rollout/engine/engine.h"

namespace grpc {
class ChannelCredentials;
}  // namespace grpc

namespace quartet {

inline constexpr char kRolloutLoading[] = "the rollout is still loading its model";

// What the leader makes every rank do (RankGroup::Run), with the types of its input and summary.
inline constexpr char kPullMethod[] = "rollout.pull";      // PullHeader, PullSummary
inline constexpr char kCommitMethod[] = "rollout.commit";  // VersionHeader, Nothing
inline constexpr char kAbortMethod[] = "rollout.abort";    // Nothing, Nothing
inline constexpr char kSleepMethod[] = "rollout.sleep";    // SleepRequest without identity, SleepReply
inline constexpr char kWakeMethod[] = "rollout.wake";      // Nothing, WakeSummary
inline constexpr char kInfoMethod[] = "rollout.info";      // Nothing, RolloutRankInfo

class RankWorker {
 public:
  // Registers with `group`, which outlives it, as does `context`. `is_trained`: there will be updates of the weights.
  RankWorker(const RolloutConfig& config, bool is_trained, const RankContext& context, RankGroup& group,
             std::shared_ptr<grpc::ChannelCredentials> credentials);

  // What its engine is to be made with.
  Ledger* ledger() { return &ledger_; }
  // The engine that it works with from now on. On the executor thread, before the service serves. Until then whoever
  // asks for what it does is told UNAVAILABLE: the leader may have loaded before this rank has.
  absl::Status Use(std::unique_ptr<RolloutEngine> engine);
  // After Use; what of it any thread may call.
  const RolloutEngine& engine() const { return *engine_; }

  // So many neighbours are one engine: they run and answer the same.
  int ranks_per_engine() const { return config_.tensor_parallel_size(); }
  // All ranks, each an engine, make their forwards together.
  bool lockstep() const { return config_.zero_stage() == 3 && context_.world_size > 1; }
  // So many neighbours have the model's weights between them.
  int ranks_per_model() const { return lockstep() ? context_.world_size : ranks_per_engine(); }
  // Of a tensor of engine().tensors(), how many neighbours of these have the same part.
  int copies(const ParameterSpec& tensor) const {
    if (tensor.slice.has_value()) return tensor.slice->copies;
    return lockstep() && engine_->adapters() == nullptr ? 1 : ranks_per_model();
  }

  // ---- Work from the leader. Any thread.

  void Put(RankWork work);
  // No more comes.
  void Close();

  // Does what is Put, on the executor thread, and hands the answers to `answer`: until the last batch, Close, or this
  // rank is stopping, or its engine cannot go on, which breaks the group.
  void Work(const std::function<void(RankEvents)>& answer);

  // ---- The parts of Work.

  // Waits until there is something to Do; false after Close, and once the last batch is done.
  bool Wait();

  struct Result {
    std::vector<RankEvents> answers;  // messages of bounded size; an error of the engine is among them
    absl::Status broken;              // why the engine cannot go on
  };
  // On the engine's thread: applies what has come, and makes a forward if there is something to compute. After an error
  // nothing is left running. An engine that has run out of memory may go on, with less to do; but not where other ranks
  // wait for its part of a forward, nor after kMostFailures forwards in a row. After another error it never may: nobody
  // knows what it would answer.
  Result Do();
  static constexpr int kMostFailures = 3;

 private:
  // Of ranks that do the same (tensor-parallel) one answers; of the others only holds and the engine's errors are.
  bool answers() const { return context_.rank % ranks_per_engine() == 0; }
  std::deque<RankWork> TakeBatches(int64_t count);
  absl::Status Judge(const absl::Status& failure);
  absl::Status CheckLoaded() const;

  absl::Status Pull(const PullHeader& header, PullSummary* summary);
  absl::Status Commit(uint64_t version);
  void Abort();
  absl::Status Sleep(const SleepRequest& request, SleepReply* reply);
  absl::Status BreakUnless(const std::string& what, absl::FunctionRef<void()> change);
  absl::Status Info(RolloutRankInfo* described) const;

  const RolloutConfig config_;
  const bool is_trained_;
  const RankContext& context_;
  RankGroup& group_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  Ledger ledger_;
  std::unique_ptr<RolloutEngine> engine_;
  std::atomic<bool> loaded_ = false;  // engine_ stays as it is

  // Of the engine's thread.
  bool held_ = false;
  bool pending_ = false;  // this rank, or one that steps together with it, has sequences, as far as is known
  int failures_ = 0;      // of the engine, in a row
  std::map<uint64_t, int64_t> unfinished_;  // sequences that the engine has, by call

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<RankWork> works_;
  int64_t batches_ = 0;  // that have come whole
  bool busy_ = false;    // Do has something to compute even without work
  bool closed_ = false;

  std::mutex staging_mutex_;
  // Guarded by it.
  std::unique_ptr<WeightStaging> staging_;
  uint64_t staged_version_ = 0;
};

}  // namespace quartet
