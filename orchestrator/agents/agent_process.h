// One process of the user's agent: what it reads of an episode, what it says of it, and how it can fail.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time/deadline.h"
#include "core/rewards/reward.h"
#include "core/service/process/piped_process.h"
#include "orchestrator/agents/episode_record.h"
#include "orchestrator/data/prompts.h"
#include "proto/run_config.pb.h"

namespace quartet {

// How a try at an episode fails.
enum class EpisodeFailure {
  kDied,       // its process ended otherwise than with exit code 0; of one that is kept: at all
  kTimedOut,   // agent.timeout_seconds
  kNonsense,   // what it has written is no answer
  kNotFinite,  // a number of its answer is none of fp32
  kError,      // its answer is {"error": text}
  kNoCall,     // it never got an answer of the policy
  kNoToken,    // those that it got have no token
  kPolicy,     // no fault of the agent's: EpisodeRecord::policy
};
inline constexpr int kEpisodeFailures = static_cast<int>(EpisodeFailure::kPolicy) + 1;
// In metrics: "agent/failed_<name>".
std::string_view NameOf(EpisodeFailure failure);

struct FailedTry {
  EpisodeFailure kind = EpisodeFailure::kDied;
  std::string why;
  bool no_room = false;  // this host had none for its process, which was not started
};

// What an agent says of an episode.
struct AgentAnswer {
  std::optional<Reward> reward;  // none: it has said nothing
  std::optional<FailedTry> failed;
  std::string last_words;      // what its process has written last to stderr in this episode, if anything
  bool names_episode = false;  // it says to which episode it is, which is this one
  bool to_another = false;     // it says that it is to another one, and has failed for that
};

// Which episode it is, for the agent to log.
struct EpisodePlace {
  int64_t step = 0;
  std::string set;     // of held-out prompts; "": of training
  int64_t row = 0;     // of the step's prompts
  int64_t sample = 0;  // of those of the row
};

// What an agent reads of an episode, one line without its end: {"messages", "label", "source", "row", "base_url",
// "api_key", "episode": {"step", "set"?, "row", "sample"}, "id"} (docs/agents.md).
std::string EpisodeLine(const PromptRecord& prompt, const EpisodePlace& place, const OpenEpisode& open);

// What `line`, an agent's answer, says; `id` is the one of its question, which it may repeat. What is not well-formed
// is a failure: an answer that is empty, too, unless `may_be_empty`.
AgentAnswer ReadAgentAnswer(std::string_view line, const std::string& id, bool may_be_empty);

// Plays one episode after the other: each by a process of its own, or by one that is kept, which is started when it is
// first needed, and after a failure again. One that is kept finds that an episode that was given up is closed: where it
// writes its line within seconds it plays the next one, too. One thread, which lives as long as this object.
class AgentProcess {
 public:
  // `config` is resolved. What processes write to stderr goes to the descriptor `log`, which outlives this.
  explicit AgentProcess(const AgentConfig& config, int log = STDERR_FILENO) : config_(config), log_(log) {}
  ~AgentProcess() { End(); }
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  // Settles, and then takes until the process has answered `line`, which is EpisodeLine of `open`, or has failed.
  // CANCELLED once `stop` is requested; INVALID_ARGUMENT where its folder cannot be entered. One that this host has no
  // room for now (descriptors, processes, memory) has failed as one that has died. A process that is not to play on
  // runs until Settle.
  // DATA_LOSS: one that is kept has written a line that nothing was asked for, or that is to another episode, and not
  // all of its answers said which episode they were to: earlier ones may have been to others. `may_be_empty`: the agent
  // may say nothing, as others give the reward.
  absl::StatusOr<AgentAnswer> Play(const std::string& line, const OpenEpisode& open, bool may_be_empty,
                                   const std::stop_token& stop);
  // That the answer to the last episode, which was well-formed, may not be its own, for the reason `why`: the process
  // is not to play on. DATA_LOSS as of Play, where the agent had not asked the policy for anything before it
  // (`has_asked`), and neither this answer nor all before it said which episode they were to.
  absl::Status Distrust(std::string_view why, bool has_asked);
  // Ends a process that is not to play on, which may take seconds, in which it may clear away what it has. Of one that
  // owes the line of an episode that was given up it waits for that; where it does not come soon, the process is not to
  // play on. Once `stop` is requested it waits no more, and ends nothing that it has not begun to end.
  void Settle(const std::stop_token& stop);

 private:
  absl::StatusOr<std::string> Ask(const std::string& line, const OpenEpisode& open, const std::stop_token& stop);
  // What is wrong with an answer of a process whose answers may be to other episodes.
  absl::Status OutOfStep(std::string_view how) const;
  // Of process_, if there is one; it has some seconds to clear away what it has.
  void End();
  FailedTry FailureOf(const absl::Status& status) const;

  const AgentConfig config_;
  const int log_;
  std::unique_ptr<PipedProcess> process_;  // null: the next episode starts one
  bool is_to_end_ = false;                 // it is not to play on
  bool waits_for_line_ = false;            // it has answered what it was asked, so as one that is well does
  bool names_all_ = true;                  // each answer that it has given has said to which episode
  bool names_any_ = false;                 // one of them has
  bool unnamed_again_ = false;             // the last one has not, nor have all before it
  // Until when one that owes a line may write it.
  Deadline given_up_ = Deadline::Never();
};

// Raises the limit of open files to what agent.processes need. INVALID_ARGUMENT where they cannot have so many.
absl::Status AllowAgents(const AgentConfig& config);

// The same; that the command is one of the shell; and that an agent that is kept waits for an episode, at which it
// looks for a moment. INVALID_ARGUMENT names command and reason; ABORTED: this host has no room for it now.
absl::Status TryAgent(const AgentConfig& config);

}  // namespace quartet
