// One thin typed client per service.
//
// Every call has a deadline and ends when the run is cancelled. Errors read "<service> at <address>, <call>: ...";
// where nobody answers they say how to start the service. Calls that change state are numbered (proto/common.proto).
// Replies are checked for shape: each item of the request is answered exactly once, with the right number of finite
// values; anything else is INTERNAL. A client is thread safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cancellation/cancellation.h"
#include "core/clients/replies.h"
#include "proto/common.pb.h"
#include "proto/critic_trainer.pb.h"
#include "proto/policy_trainer.pb.h"
#include "proto/rollout.pb.h"
#include "proto/run_config.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {

class ServiceClient {
 public:
  virtual ~ServiceClient();
  const std::string& service() const;
  const std::string& address() const;
  // The service listens at `address` from now on. Calls that are under way end as they would have.
  void MoveTo(const std::string& address);
  // Gives a service that does not answer yet a few seconds to come up.
  absl::StatusOr<ServiceInfo> GetInfo();
  // Waits for a service that answers, but is still loading its model, however long it takes; `on_loading`, if given, is
  // told again and again what the service says that it is at ("reading weights, 3 of 12"; may be "").
  absl::StatusOr<ServiceInfo> AwaitInfo(const std::function<void(const std::string&)>& on_loading);

  // As proto/trace.proto has them, within seconds or not at all. TakeTrace gives the trace's events to `on_events` in
  // pieces of whole lines; the number of spans that found no place is returned.
  absl::Status StartTrace(int64_t origin);
  absl::StatusOr<int64_t> TakeTrace(const std::function<absl::Status(const std::string&)>& on_events);

  // Made by Connect* below.
  struct Connection;
  explicit ServiceClient(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

 protected:
  std::shared_ptr<Connection> connection_;

 private:
  bool WaitForConnection();
  // Without the service's name in the error.
  absl::StatusOr<ServiceInfo> AskInfo();
};

class RolloutClient : public ServiceClient {
 public:
  using ServiceClient::ServiceClient;
  // header.num_items is filled in; tokens are not streamed. The sequences by prompt (in the order of `prompts`), then
  // by sample. Checked: every sequence begins with its prompt, has between 1 and max_new_tokens tokens after it, all of
  // them actions, made by header.policy_version alone, and that it came to its own end. CANCELLED once `give_up` is
  // requested to stop.
  absl::StatusOr<std::vector<GeneratedSequence>> Generate(const GenerateHeader& header,
                                                          const std::vector<Prompt>& prompts,
                                                          const std::stop_token& give_up = {});
  // The same of the `first` prompts (at most all) to have all their samples; the others are given up. `on_sequence` is
  // told of each sequence that will be returned as soon as that is known, from the thread of the caller; an error of it
  // ends the call.
  absl::StatusOr<std::vector<GeneratedSequence>> GenerateFirst(
      const GenerateHeader& header, const std::vector<Prompt>& prompts, int64_t first,
      const std::function<absl::Status(const GeneratedSequence&)>& on_sequence, const std::stop_token& give_up = {});
  absl::StatusOr<BeginUpdateReply> BeginUpdate(uint64_t step, const WeightManifest& manifest);
  absl::StatusOr<CommitUpdateReply> CommitUpdate(uint64_t step, uint64_t version);
  absl::Status AbortUpdate(uint64_t step);
  absl::Status Sleep(uint64_t step, int level);
  // The memory is taken again; Generate waits until Resume.
  absl::Status WakeUp(uint64_t step);
  absl::Status Resume(uint64_t step);
};

// Of either trainer.
class TrainerClient : public ServiceClient {
 public:
  using ServiceClient::ServiceClient;
  virtual absl::StatusOr<SaveCheckpointReply> SaveCheckpoint(uint64_t step, const std::string& checkpoint_id,
                                                             bool save_optimizer) = 0;
  virtual absl::Status Sleep() = 0;
};

class PolicyTrainerClient : public TrainerClient {
 public:
  using TrainerClient::TrainerClient;
  // One array a sequence, in the order of `sequences`; one value an action token.
  absl::StatusOr<std::vector<std::vector<float>>> LogProbs(float temperature, SequenceSpan sequences,
                                                           bool without_adapters = false);
  // header.identity and num_items are filled in.
  absl::StatusOr<PolicyUpdateReply> Update(uint64_t step, PolicyUpdateHeader header,
                                           const std::vector<TrainingSequence>& sequences);
  absl::StatusOr<PublishReply> Publish(uint64_t step, uint64_t version);
  absl::StatusOr<SaveCheckpointReply> SaveCheckpoint(uint64_t step, const std::string& checkpoint_id,
                                                     bool save_optimizer) override;
  absl::Status Sleep() override;
};

class CriticTrainerClient : public TrainerClient {
 public:
  using TrainerClient::TrainerClient;
  absl::StatusOr<std::vector<std::vector<float>>> Values(SequenceSpan sequences);
  // One value a sequence, at its last token: that of a reward model.
  absl::StatusOr<std::vector<float>> Rewards(SequenceSpan sequences);
  absl::StatusOr<CriticUpdateReply> Update(uint64_t step, CriticUpdateHeader header,
                                           const std::vector<TrainingSequence>& sequences);
  absl::StatusOr<SaveCheckpointReply> SaveCheckpoint(uint64_t step, const std::string& checkpoint_id,
                                                     bool save_optimizer) override;
  absl::Status Sleep() override;
};

// A call of Score that is under way: items may be added while others are scored. One thread.
class ScoreCall {
 public:
  virtual ~ScoreCall() = default;
  // Where the call has ended meanwhile the item is lost; Finish says why.
  virtual void Add(const ScoreItem& item) = 0;
  // After as many items as were announced. In their order; those that could not be scored have an error in place of a
  // reward (reward.on_error "drop").
  virtual absl::StatusOr<std::vector<ScoreReply>> Finish() = 0;
};

class ScorerClient : public ServiceClient {
 public:
  using ServiceClient::ServiceClient;
  // Ends, if it is given up, with its object. Its deadline is twice that of other calls: items come while answers are
  // generated.
  std::unique_ptr<ScoreCall> BeginScore(int64_t num_items);
  // In the order of `items`.
  absl::StatusOr<std::vector<ScoreReply>> Score(const std::vector<ScoreItem>& items);
  absl::StatusOr<std::vector<std::vector<float>>> ReferenceLogProbs(float temperature, SequenceSpan sequences);
};

// The services of a PPO run.
struct Services {
  std::unique_ptr<RolloutClient> rollout;
  std::unique_ptr<PolicyTrainerClient> policy_trainer;
  std::unique_ptr<CriticTrainerClient> critic_trainer;  // null in a run without a critic
  std::unique_ptr<ScorerClient> scorer;

  // Those that there are.
  std::vector<ServiceClient*> all() const;
};

// Clients of the services at config.services.*.listen, for a run of its own. Nothing is connected yet; the first call
// does. `cancellation` outlives them.
absl::StatusOr<Services> ConnectServices(const RunConfig& config, Cancellation* cancellation);
// Of any of them, by its name.
absl::StatusOr<std::unique_ptr<ServiceClient>> ConnectService(const RunConfig& config, const std::string& service,
                                                              Cancellation* cancellation);
absl::StatusOr<std::unique_ptr<PolicyTrainerClient>> ConnectPolicyTrainer(const RunConfig& config,
                                                                          Cancellation* cancellation);
absl::StatusOr<std::unique_ptr<CriticTrainerClient>> ConnectCriticTrainer(const RunConfig& config,
                                                                          Cancellation* cancellation);
absl::StatusOr<std::unique_ptr<ScorerClient>> ConnectScorer(const RunConfig& config, Cancellation* cancellation);

}  // namespace quartet
