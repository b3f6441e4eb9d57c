// Answers that an agent has asked for: each is an episode.
#pragma once

#include <functional>
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
// `notice` is told, from any thread, what a person should know of the agent's requests. A rollout that is gone
// (UNAVAILABLE) ends a draw at once, agent or not. Errors: the agent's server cannot be started, the rollout's model
// cannot be read.
absl::StatusOr<std::unique_ptr<AnswerSource>> MakeAnswerSource(const RunConfig& config, const Tokenizer* tokenizer,
                                                               RolloutClient* rollout, Cancellation* cancellation,
                                                               std::function<void(const std::string&)> notice);

}  // namespace quartet
