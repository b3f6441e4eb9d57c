// Answers that an agent has asked for: each is an episode.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/cancellation/cancellation.h"
#include "core/clients/service_clients.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/agents/episode_runs.h"
#include "orchestrator/agents/episode_server.h"
#include "orchestrator/answers/answer_source.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Where the answers of a run come from: its agent, if it has one, else the rollout. What it is given outlives it.
// A rollout that is gone (UNAVAILABLE) ends a draw at once, agent or not. What an agent writes to stderr goes to
// logs/agent.log of config.run_dir, which is there. Errors: the agent's server cannot be started, the rollout's model
// cannot be read, the log cannot be written.
absl::StatusOr<std::unique_ptr<AnswerSource>> MakeAnswerSource(const RunConfig& config, const Tokenizer* tokenizer,
                                                               RolloutClient* rollout, Cancellation* cancellation);

}  // namespace quartet
