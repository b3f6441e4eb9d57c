// Plays the episodes of a step side by side: the agent's processes on one side, the policy on the other.
#pragma once

#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "core/run_folder/records/metrics.h"
#include "orchestrator/agents/agent_process.h"
#include "orchestrator/agents/episode_record.h"
#include "orchestrator/data/prompts.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct EpisodeTask {
  const PromptRecord* prompt = nullptr;  // outlives it
  EpisodePlace place;
  uint64_t seed = 0;  // EpisodeSeed
};

// Of the draws of one episode. `step_seed` is another for each step.
uint64_t EpisodeSeed(uint64_t step_seed, const EpisodePlace& place);

struct PlayedEpisode {
  size_t task = 0;  // its place among the tasks
  EpisodeRecord record;
  std::optional<Reward> reward;  // the agent's; none where it has said nothing
  // Not OK: it has failed in all its tries, and is dropped (agent.on_error); of the record nothing is to be used.
  absl::Status dropped;
  double seconds = 0;                  // of the last try
  std::vector<EpisodeFailure> failed;  // tries
  std::string why_failed;              // the last of them
};

// Of the episodes of a step.
class EpisodeMetrics {
 public:
  void Add(const PlayedEpisode& episode);
  // "agent/...": of each episode that was not dropped, on average, turns (in its longest sequence), calls, refused,
  // branches (sequences beyond the first), seconds, seconds_in_tools (without those in which the policy was asked);
  // retries, dropped, failed_<kind> (tries), counted. Nothing where there was no episode.
  void AddTo(Metrics* metrics) const;

 private:
  int64_t played_ = 0, dropped_ = 0, retries_ = 0;
  int64_t turns_ = 0, calls_ = 0, refused_ = 0, branches_ = 0;
  double seconds_ = 0, seconds_in_tools_ = 0;
  std::array<int64_t, kEpisodeFailures> failed_ = {};
};

// Has agent.processes threads, each with an AgentProcess, as long as it lives. One thread uses it.
class EpisodeRuns {
 public:
  // `config` is resolved and HasAgent. `host`, and the descriptor `log` of AgentProcess, outlive this.
  EpisodeRuns(const RunConfig& config, EpisodeHost* host, int log = STDERR_FILENO);
  ~EpisodeRuns();
  EpisodeRuns(const EpisodeRuns&) = delete;
  EpisodeRuns& operator=(const EpisodeRuns&) = delete;

  // Told of each episode on the thread of Play, in the order in which they end, while others are played. False: that is
  // enough, and the others are given up. Errors end Play.
  using Done = std::function<absl::StatusOr<bool>(PlayedEpisode)>;

  // Begins the episodes in their order. What becomes of each depends on its task alone, not on the others nor on how
  // many are played at the same time. One that fails is played again with the same seed, agent.max_tries times in all.
  //
  // Errors: FAILED_PRECONDITION: an episode has failed in all its tries, and agent.on_error is "stop"; the record's
  // own, UNAVAILABLE in place of CANCELLED, where that was the policy's fault, whatever on_error says; both name row,
  // sample, tries and the reason. INVALID_ARGUMENT: the agent's folder cannot be entered. DATA_LOSS: of AgentProcess,
  // of the episodes that are given up, too. CANCELLED once `stop` is requested. No episode is open afterwards.
  absl::Status Play(const std::vector<EpisodeTask>& tasks, const Done& done, const std::stop_token& stop = {});

 private:
  using Ended = absl::StatusOr<PlayedEpisode>;
  struct Batch;
  void Work();
  Ended PlayTask(AgentProcess& process, const EpisodeTask& task, const std::stop_token& stop) const;
  // One try: how it has failed, if it has.
  absl::StatusOr<std::optional<FailedTry>> Try(AgentProcess& process, const EpisodeTask& task,
                                               const std::stop_token& stop, PlayedEpisode* episode) const;
  absl::Status OfTask(const EpisodeTask& task, const absl::Status& status) const;

  const RunConfig config_;
  EpisodeHost* const host_;
  const int log_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  Batch* batch_ = nullptr;  // what Play is at
  std::stop_source closing_;
  std::vector<std::jthread> threads_;
};

}  // namespace quartet
