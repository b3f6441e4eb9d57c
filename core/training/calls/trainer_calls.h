// What the services of both trainers answer alike, for their leaders and for every rank. LibTorch-free.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/rank/rank_context.h"
#include "core/service/ranks/group/leader_status.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/service/rpc/batch_limits.h"
#include "core/service/rpc/replay_guard.h"
#include "core/training/batch/batch_check.h"
#include "core/training/calls/sequence_calls.h"
#include "core/training/calls/stream_calls.h"
#include "core/training/engine/trainer_engine.h"
#include "core/training/engine/update_call.h"
#include "proto/common.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The public calls run on gRPC's threads, the rank's handlers on its executor thread, which alone uses the engine.
class TrainerCalls {
 public:
  // `name` of the model, "policy" or "critic": of its checkpoints, and of the service with "_trainer" behind it.
  // `config` is its section, named `section`: "actor" or "critic"; `configuration` is ServiceFields. `vocabulary`:
  // token ids that there are. Registers the ranks' methods.
  TrainerCalls(const std::string& name, const std::string& section, const TrainerConfig& config,
               const std::string& run_dir, std::map<std::string, std::string> configuration, HeadKind head,
               const ModelConfig& model, int64_t vocabulary, const RankContext& context, RankGroup& group);

  // Before this calls are UNAVAILABLE.
  void SetEngine(std::unique_ptr<TrainerEngine> engine);

  const LeaderStatus& leader() const { return leader_; }
  const SequenceLimits& limits() const { return limits_; }
  ReplayGuard& guard() { return guard_; }

  absl::Status GetInfo(const Deadline& deadline, ServiceInfo* info);
  absl::Status SaveCheckpoint(const Deadline& deadline, const SaveCheckpointRequest& request,
                              SaveCheckpointReply* reply);
  absl::Status Sleep(const Deadline& deadline);

  // The name of the call, and where a Reply has its values.
  template <typename Request, typename Reply, typename Stream>
  absl::Status Forward(const std::string& call, const Deadline& deadline, Stream* stream,
                       TokenValues* (Reply::*values)()) {
    QUARTET_RETURN_IF_ERROR(leader_.CheckReady(call));
    return AnswerForward<Request>(group_, forward_method_, forward_batching_, limits_, batch_limits_, deadline, stream,
                                  values);
  }

  // `check` is given the header and the sequences, `pairs` says of a header whether its loss is of pairs, `complete` is
  // given what all trainers' replies have, to add the rest.
  template <typename Request, typename Reply, typename Stream, typename Check>
  absl::Status Update(const Deadline& deadline, Stream* stream, const Check& check,
                      bool (*pairs)(const HeaderOf<Request>&), void (*complete)(const UpdateOutcome<Reply>&, Reply*),
                      Reply* reply) {
    QUARTET_RETURN_IF_ERROR(leader_.CheckReady("Update"));
    const auto apply = [&](const auto& header, const std::vector<TrainingSequence>& items) -> absl::StatusOr<Reply> {
      QUARTET_ASSIGN_OR_RETURN(UpdateOutcome<Reply> done,
                               RunUpdate<Reply>(group_, update_method_, MakeUpdateCall(header), items, update_batching_,
                                                pairs(header), deadline));
      complete(done, &done.reply);
      return std::move(done.reply);
    };
    return AnswerUpdate<Request>(guard_, batch_limits_, stream, check, apply, reply);
  }

 private:
  const std::string name_, run_dir_;
  const std::string forward_method_, update_method_, save_method_, sleep_method_, info_method_;
  RankGroup& group_;
  LeaderStatus leader_;
  const SequenceLimits limits_;
  const Vocabulary vocabulary_;
  BatchLimits* const batch_limits_;
  const MicroBatching forward_batching_, update_batching_;
  ReplayGuard guard_;
  std::unique_ptr<TrainerEngine> engine_;  // executor thread only
};

}  // namespace quartet
