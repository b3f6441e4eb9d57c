// The four services with scripted answers, on real sockets, in one process. For tests.
//
// The fake policy: ids are characters; the answer to every prompt is "ok" and an end token, whose log-probabilities are
// those below. No arithmetic that the loop does is repeated here.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "proto/critic_trainer.grpc.pb.h"
#include "proto/policy_trainer.grpc.pb.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/run_config.pb.h"
#include "proto/scorer.grpc.pb.h"
#include "proto/trace.grpc.pb.h"

namespace quartet {

// A function that can be exchanged while servers run it. Thread safe.
template <typename Reply>
class SpoilReply {
 public:
  void operator=(std::function<void(Reply*)> spoil) {
    std::lock_guard<std::mutex> lock(mutex_);
    spoil_ = std::move(spoil);
  }
  void operator()(Reply* reply) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (spoil_) spoil_(reply);
  }

 private:
  std::mutex mutex_;
  std::function<void(Reply*)> spoil_;
};

class FakeServices {
 public:
  // Each service on a free port of 127.0.0.1.
  FakeServices();
  ~FakeServices();

  // A configuration for a run of `steps` steps of 4 prompts times 2 samples on these services; resolved. Prompts are in
  // a file that is written to `folder`; run_dir is `folder`/run.
  RunConfig MakeConfig(const std::string& folder, int steps) const;

  std::string address(const std::string& service) const;
  // Ends the server of one service, in the middle of its calls.
  void Kill(const std::string& service);

  // Called at the beginning of each call with "<service>.<call>"; an error is the call's answer.
  void SetHook(std::function<grpc::Status(const std::string&)> hook);
  // What the trainers say that they have applied; each update adds one.
  void SetOptimizerSteps(int64_t steps);
  // Whether the rollout says that it is paused, and that it sleeps.
  void SetPaused(bool paused, bool asleep = false);
  // What the services say that they were started with.
  void SetConfiguration(const RunConfig& config);
  // Where SaveCheckpoint makes its folders.
  void SetCheckpointRoot(const std::string& folder);
  // Called with every reply before it is sent, to spoil it.
  SpoilReply<GeneratedSequence> spoil_generated;
  SpoilReply<TokenValues> spoil_values;
  SpoilReply<ScoreReply> spoil_score;
  SpoilReply<ServiceInfo> spoil_info;
  SpoilReply<PolicyUpdateReply> spoil_policy_update;
  SpoilReply<CriticUpdateReply> spoil_critic_update;

  // "<service>.<call>" in the order in which calls began.
  std::vector<std::string> calls();
  std::vector<PolicyUpdateHeader> policy_updates();
  std::vector<std::vector<TrainingSequence>> policy_batches();
  std::vector<CriticUpdateHeader> critic_updates();
  std::vector<std::vector<TrainingSequence>> critic_batches();
  std::vector<GenerateHeader> generations();
  std::vector<CallIdentity> identities(const std::string& service);

  // Answers: log-probability of every token by rollout, trainer and reference, value of every state.
  float rollout_log_prob = -1.0f;
  float sampled_log_prob = -0.75f;  // of what it drew from
  float trainer_log_prob = -1.0f;
  float reference_log_prob = -1.25f;
  float value = 0.5f;  // of a whole sequence: its last but one token
                       // Reward of sample number i of each prompt: 1 for even i, else 0.

 private:
  class RolloutService;
  class PolicyTrainerService;
  class CriticTrainerService;
  class ScorerService;

  grpc::Status Begin(const std::string& call);
  // A call that changes state: Begin, then under mutex_ notes its identity and does `work`.
  grpc::Status Change(const std::string& service, const std::string& call, const CallIdentity& identity,
                      const std::function<grpc::Status()>& work);
  grpc::Status Info(const std::string& service, ServiceInfo* info);
  grpc::Status MakeCheckpoint(const SaveCheckpointRequest& request, const std::string& name,
                              SaveCheckpointReply* reply);

  mutable std::mutex mutex_;
  RunConfig configuration_;
  std::string checkpoint_root_;
  std::function<grpc::Status(const std::string&)> hook_;
  std::vector<std::string> calls_;
  std::vector<PolicyUpdateHeader> policy_updates_;
  std::vector<std::vector<TrainingSequence>> policy_batches_;
  std::vector<CriticUpdateHeader> critic_updates_;
  std::vector<std::vector<TrainingSequence>> critic_batches_;
  std::vector<GenerateHeader> generations_;
  std::map<std::string, std::vector<CallIdentity>> identities_;
  std::map<std::string, int64_t> optimizer_steps_;  // of the trainers
  uint64_t rollout_version_ = 0;
  uint64_t staged_version_ = 0;
  bool rollout_paused_ = false, rollout_asleep_ = false;

  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::map<std::string, std::unique_ptr<grpc::Server>> servers_;
  std::map<std::string, int> ports_;
};

}  // namespace quartet
