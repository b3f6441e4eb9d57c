#include "orchestrator/agents/episode_runs.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/base/time/pause.h"
#include "core/base/time/stopwatch.h"
#include "core/errors/shown.h"
#include "core/rewards/labels/labels.h"

namespace quartet {
namespace {

// What an episode is without, though its agent says that all is well.
std::optional<FailedTry> Missing(const EpisodeRecord& record) {
  if (record.calls == 0) {
    return FailedTry{EpisodeFailure::kNoCall,
                     "it has got no answer of the policy, which it reaches at the \"base_url\" of its line, in each "
                     "episode another"};
  }
  if (record.sequences.empty()) {
    return FailedTry{EpisodeFailure::kNoToken, "no answer that it got of the policy has a token"};
  }
  return std::nullopt;
}

// Of a try after as many for which this host had no room: it may be full for a moment.
absl::Duration PauseBefore(int unstarted) {
  constexpr absl::Duration kFirst = absl::Milliseconds(100), kLongest = absl::Seconds(10);
  absl::Duration pause = kFirst;
  for (int i = 1; i < unstarted && pause < kLongest; ++i) pause *= 10;
  return pause;
}

int64_t TurnsOf(const EpisodeRecord& record) {
  int64_t most = 0;
  for (const EpisodeSequence& sequence : record.sequences) most = std::max(most, sequence.turns);
  return most;
}

}  // namespace

uint64_t EpisodeSeed(uint64_t step_seed, const EpisodePlace& place) {
  const uint64_t numbers[] = {static_cast<uint64_t>(place.row), static_cast<uint64_t>(place.sample)};
  return HashBytes({reinterpret_cast<const char*>(numbers), sizeof(numbers)}, step_seed);
}

void EpisodeMetrics::Add(const PlayedEpisode& episode) {
  for (const EpisodeFailure kind : episode.failed) ++failed_[static_cast<size_t>(kind)];
  const auto failures = static_cast<int64_t>(episode.failed.size());
  if (!episode.dropped.ok()) {
    ++dropped_;
    retries_ += failures - 1;
    return;
  }
  retries_ += failures;
  ++played_;
  turns_ += TurnsOf(episode.record);
  calls_ += episode.record.calls;
  refused_ += episode.record.refused;
  branches_ += static_cast<int64_t>(episode.record.sequences.size()) - 1;
  seconds_ += episode.seconds;
  seconds_in_tools_ += std::max(0.0, episode.seconds - episode.record.policy_seconds);
}

void EpisodeMetrics::AddTo(Metrics* metrics) const {
  if (played_ + dropped_ == 0) return;
  const auto mean = [&](const char* name, auto sum) {
    if (played_ > 0)
      metrics->Set(absl::StrCat("agent/", name), static_cast<double>(sum) / static_cast<double>(played_));
  };
  mean("turns", turns_);
  mean("calls", calls_);
  mean("refused", refused_);
  mean("branches", branches_);
  mean("seconds", seconds_);
  mean("seconds_in_tools", seconds_in_tools_);
  metrics->Set("agent/retries", static_cast<double>(retries_));
  metrics->Set("agent/dropped", static_cast<double>(dropped_));
  for (int kind = 0; kind < kEpisodeFailures; ++kind) {
    metrics->Set(absl::StrCat("agent/failed_", std::string(NameOf(static_cast<EpisodeFailure>(kind)))),
                 static_cast<double>(failed_[static_cast<size_t>(kind)]));
  }
}

struct EpisodeRuns::Batch {
  const std::vector<EpisodeTask>& tasks;
  std::stop_source stop = {};
  // With mutex_:
  size_t next = 0;  // to begin
  int64_t running = 0;
  std::deque<Ended> ended = {};
};

EpisodeRuns::EpisodeRuns(const RunConfig& config, EpisodeHost* host, int log)
    : config_(config), host_(host), log_(log) {
  for (int i = 0; i < config_.agent().processes(); ++i) threads_.emplace_back([this] { Work(); });
}

EpisodeRuns::~EpisodeRuns() {
  const std::lock_guard lock(mutex_);
  closing_.request_stop();
  changed_.notify_all();
}

void EpisodeRuns::Work() {
  AgentProcess process(config_.agent(), log_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(
        lock, [&] { return closing_.stop_requested() || (batch_ != nullptr && batch_->next < batch_->tasks.size()); });
    if (closing_.stop_requested()) return;
    Batch& batch = *batch_;
    const size_t number = batch.next++;
    ++batch.running;
    lock.unlock();
    Ended ended = PlayTask(process, batch.tasks[number], batch.stop.get_token());
    if (ended.ok()) ended->task = number;
    lock.lock();
    --batch.running;
    if (!ended.ok()) batch.next = batch.tasks.size();
    batch.ended.push_back(std::move(ended));
    changed_.notify_all();
    lock.unlock();
    process.Settle(closing_.get_token());
    lock.lock();
  }
}

absl::Status EpisodeRuns::Play(const std::vector<EpisodeTask>& tasks, const Done& done, const std::stop_token& stop) {
  Batch batch = {.tasks = tasks};
  std::unique_lock lock(mutex_);
  batch_ = &batch;
  changed_.notify_all();
  absl::Status status;
  for (bool enough = false; !enough && status.ok();) {
    changed_.wait(lock, stop,
                  [&] { return !batch.ended.empty() || (batch.running == 0 && batch.next == tasks.size()); });
    if (stop.stop_requested()) {
      status = absl::CancelledError("the call has ended");
    } else if (batch.ended.empty()) {
      enough = true;
    } else {
      Ended ended = std::move(batch.ended.front());
      batch.ended.pop_front();
      lock.unlock();
      absl::StatusOr<bool> more = ended.ok() ? done(*std::move(ended)) : ended.status();
      lock.lock();
      enough = !more.value_or(false);
      status = more.status();
    }
  }
  batch.next = tasks.size();
  batch.stop.request_stop();
  changed_.wait(lock, [&batch] { return batch.running == 0; });
  batch_ = nullptr;
  // What comes after enough is nobody's loss, but that says of earlier episodes that they may be wrong.
  for (const Ended& ended : batch.ended) {
    if (status.ok() && absl::IsDataLoss(ended.status())) status = ended.status();
  }
  return status;
}

EpisodeRuns::Ended EpisodeRuns::PlayTask(AgentProcess& process, const EpisodeTask& task,
                                         const std::stop_token& stop) const {
  PlayedEpisode episode;
  int unstarted = 0;  // tries, the last ones
  for (int tries = 1;; ++tries) {
    QUARTET_ASSIGN_OR_RETURN(const std::optional<FailedTry> failed, Try(process, task, stop, &episode));
    if (!failed.has_value()) return episode;
    episode.failed.push_back(failed->kind);
    episode.why_failed = failed->why;
    if (tries < config_.agent().max_tries()) {
      unstarted = failed->no_room ? unstarted + 1 : 0;
      if (unstarted > 0 && !PauseFor(stop, PauseBefore(unstarted))) return absl::CancelledError("the call has ended");
      continue;
    }
    const bool is_ours = failed->kind == EpisodeFailure::kPolicy;
    // Of a call that the rollout has given up, too: the run has not been cancelled.
    const absl::StatusCode ours =
        absl::IsCancelled(episode.record.policy) ? absl::StatusCode::kUnavailable : episode.record.policy.code();
    const absl::Status status(is_ours ? ours : absl::StatusCode::kFailedPrecondition,
                              absl::StrCat(tries, tries == 1 ? " try: " : " tries: ", failed->why));
    if (is_ours || config_.agent().on_error() == "stop") return OfTask(task, status);
    episode.dropped = OfTask(task, status);
    return episode;
  }
}

absl::StatusOr<std::optional<FailedTry>> EpisodeRuns::Try(AgentProcess& process, const EpisodeTask& task,
                                                          const std::stop_token& stop, PlayedEpisode* episode) const {
  process.Settle(stop);
  const Stopwatch time;
  const OpenEpisode open = host_->Open(task.seed);
  absl::StatusOr<AgentAnswer> answer = process.Play(EpisodeLine(*task.prompt, task.place, open), open,
                                                    AnyAdds(config_.reward(), task.prompt->source), stop);
  episode->record = host_->Close(open.key);
  episode->seconds = time.Seconds();
  if (!answer.ok()) return OfTask(task, answer.status());
  episode->reward = std::move(answer->reward);
  const EpisodeRecord& record = episode->record;
  // An agent that says what it likes of an episode that we have spoilt.
  if (!record.policy.ok()) return FailedTry{EpisodeFailure::kPolicy, std::string(record.policy.message())};
  std::optional<FailedTry> failed = std::move(answer->failed);
  if (!failed.has_value()) {
    failed = Missing(record);
    // It may have answered another episode, and would do so from now on.
    if (failed.has_value()) {
      const bool has_asked = record.calls > 0 || record.refused > 0 || record.policy_seconds > 0;
      const absl::Status earlier = process.Distrust(failed->why, has_asked);
      if (!earlier.ok()) return OfTask(task, WithLastWords(earlier, answer->last_words));
    }
  }
  if (!failed.has_value()) return failed;
  if (record.refused > 0) {
    absl::StrAppend(&failed->why, "; ", record.refused, " of its requests were refused: ", Quoted(record.refusal));
  }
  if (failed->kind == EpisodeFailure::kDied && config_.agent().kept() && record.calls + record.refused == 0) {
    absl::StrAppend(&failed->why,
                    "; one that is kept finds \"base_url\" and \"api_key\" in each line, not in its environment");
  }
  if (failed->kind == EpisodeFailure::kTimedOut && !record.no_room.empty()) {
    absl::StrAppend(&failed->why, "; it waited for the policy, which had no room: ", record.no_room);
  }
  failed->why = std::string(WithLastWords(absl::InternalError(failed->why), answer->last_words).message());
  return failed;
}

absl::Status EpisodeRuns::OfTask(const EpisodeTask& task, const absl::Status& status) const {
  if (absl::IsCancelled(status)) return status;
  return Prefixed(absl::StrCat("agent ", Quoted(config_.agent().command()), ": ", task.prompt->place, ", sample ",
                               task.place.sample, " (counted from 0)"),
                  status);
}

}  // namespace quartet
