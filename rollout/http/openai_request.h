// Reads the requests of OpenAI's interface, with vLLM's additions, and says what the rollout has to do. No sockets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/rollout.pb.h"

namespace quartet {

// What requests are read against.
struct ServedModel {
  std::string name;
  const Tokenizer* tokenizer = nullptr;
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;  // tokens of prompt and answer together
  int64_t max_sequences = 0;  // prompts x n of one request
};

struct OpenAiRequest {
  bool chat = false;  // /v1/chat/completions; else /v1/completions
  GenerateHeader header;
  std::vector<Prompt> prompts;  // their index is their place
  bool logprobs = false;        // each token's log-probability is told
  bool includes_stop = false;   // the text has the stop string or token that ends it
  // Texts that are told before the answers; by prompt, or none.
  std::vector<std::string> echoes;
  bool stream = false;
  bool include_usage = false;
};

// The request in `body`, JSON. `seed` is taken where the request has none. INVALID_ARGUMENT names the parameter, its
// value and what is allowed, also for a parameter that is not known, or known and not supported, and would change the
// answer; NOT_FOUND where another model is asked for.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(bool chat, std::string_view body, const ServedModel& model,
                                                uint64_t seed);

}  // namespace quartet
