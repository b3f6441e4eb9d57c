// How answers to an agent are drawn: as the run says, whatever its requests say.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/openai/openai_request.h"
#include "proto/rollout.pb.h"

namespace quartet {

// Puts `run` in the place of what `chat` asks for of sampling, so that trainers compute the probabilities of what was
// drawn. Of the request what ends an answer holds beside that of the run, and the shorter of the two max_tokens.
// Returns the names of its parameters that have no effect, and would have one. INVALID_ARGUMENT: a parameter that asks
// for other answers than the run draws, where setting it aside would break what the agent relies on.
absl::StatusOr<std::vector<std::string>> HoldRunSampling(const SamplingParams& run, OpenAiChat* chat);

}  // namespace quartet
