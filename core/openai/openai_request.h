// Reads the requests of OpenAI's interface, with vLLM's additions, and says what the rollout has to do. No sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/openai/message_reader.h"
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

// What is told of the server's files in errors: no folders. Of "/models/x/tokenizer.json: normalizer: ...", what stands
// behind the folder.
std::string WithoutFolder(absl::string_view message);

struct OpenAiRequest {
  bool chat = false;  // /v1/chat/completions; else /v1/completions
  GenerateHeader header;
  std::vector<Prompt> prompts;  // their index is their place
  bool logprobs = false;        // each token's log-probability is told
  bool includes_stop = false;   // the text has the stop string or token that ends it
  MessageForm form;             // of a chat's answers
  // Texts that are told before the answers; by prompt, or none.
  std::vector<std::string> echoes;
  bool stream = false;
  bool include_usage = false;     // in an event at the end
  bool continuous_usage = false;  // so far, in every event
  // Likeliest tokens that are told at each place of the prompt beside its own; not set: nothing is. Whole answers only.
  std::optional<int32_t> prompt_logprobs;
};

// About the most memory that the JSON text `body` takes while it is read, beside its own: parsed, and its texts as
// tokens. Found in a pass that takes none.
int64_t JsonBytes(std::string_view body);

// The request in `body`, JSON. `seed` is taken where the request has none. INVALID_ARGUMENT names the parameter, its
// value and what is allowed, also for a parameter that is not known, or known and not supported, and would change the
// answer; NOT_FOUND where another model is asked for.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(bool chat, std::string_view body, const ServedModel& model,
                                                uint64_t seed);

}  // namespace quartet
