// One rank's part of the rollout service: its engine, the work that the leader sends, the weights that it stages.
// LibTorch-free.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "core/service/rank_context.h"
#include "core/service/rank_group.h"
#include "core/zero/ledger.h"
#include "proto/run_config.pb.h"
#include "rollout/engine.h"
#include "rollout/rank_worker.h"
#include "rollout/rollout_rank.pb.h"

namespace quartet {

// What the leader makes every rank do (RankGroup::Run), with the types of its input and summary.
inline constexpr char kPullMethod[] = "rollout.pull";      // PullHeader, PullSummary
inline constexpr char kCommitMethod[] = "rollout.commit";  // VersionHeader, Nothing
inline constexpr char kAbortMethod[] = "rollout.abort";    // Nothing, Nothing
inline constexpr char kSleepMethod[] = "rollout.sleep";    // SleepRequest without identity, SleepReply
inline constexpr char kWakeMethod[] = "rollout.wake";      // Nothing, Nothing
inline constexpr char kInfoMethod[] = "rollout.info";      // Nothing, RolloutRankInfo
// The pipe of RankWork to a rank and RankEvents back.
inline constexpr char kWorkPipe[] = "rollout.work";

class RankPart {
 public:
  // Registers with `group`, which outlives it, as do `config` and `context`.
  RankPart(const RunConfig& config, const RankContext& context, RankGroup& group,
           std::shared_ptr<grpc::ChannelCredentials> credentials);

  // On the executor thread.
  absl::Status Load(const RolloutEngineOptions& options);
  // After Load; what of it any thread may call.
  const RolloutEngine& engine() const { return *engine_; }

  // So many neighbours are one engine: they run and answer the same.
  int ranks_per_engine() const { return config_.rollout().tensor_parallel_size(); }
  // All ranks, each an engine, make their forwards together.
  bool lockstep() const { return config_.rollout().zero_stage() == 3 && context_.world_size > 1; }
  // So many neighbours have the model's weights between them.
  int ranks_per_model() const { return lockstep() ? context_.world_size : ranks_per_engine(); }
  // Whether each of these has a part of a tensor of engine().tensors().
  bool divides(const ParameterSpec& tensor) const { return tensor.slice.has_value() || lockstep(); }

  // Work for this rank, from the leader. Any thread.
  void Put(RankWork work) { worker_.Put(std::move(work)); }
  // No more comes. Any thread.
  void Close() { worker_.Close(); }
  // Does what is Put, on the executor thread, and hands the answers to `answer`: until Close, or this rank is stopping.
  void Work(const std::function<void(RankEvents)>& answer);

 private:
  void Follow(RankPipe& pipe);
  absl::Status Pull(const PullHeader& header, PullSummary* summary);
  absl::Status Commit(uint64_t version);
  void Abort();
  void Sleep(const SleepRequest& request, SleepReply* reply);
  RolloutRankInfo Info() const;

  const RunConfig& config_;
  const RankContext& context_;
  RankGroup& group_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  Ledger ledger_;
  std::unique_ptr<RolloutEngine> engine_;
  RankWorker worker_;

  std::mutex staging_mutex_;
  // Guarded by it.
  std::unique_ptr<WeightStaging> staging_;
  uint64_t staged_version_ = 0;
};

}  // namespace quartet
