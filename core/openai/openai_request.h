// Reads the requests of OpenAI's interface, with vLLM's additions, and says what the rollout has to do. No sockets.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
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

// A chat that is asked for, before a prompt is made of it.
struct OpenAiChat {
  OpenAiRequest request;                       // but for its prompt, and what follows from that
  std::optional<int32_t> max_tokens;           // of the answer; not set: as many as find room
  const char* max_tokens_name = "max_tokens";  // in the request
  std::vector<ChatMessage> messages;
  // What the chat template is told beside them, `tools` of the request among it.
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();
  bool has_tools = false;           // the request has
  std::set<std::string> named;      // its parameters that are set
  bool add_special_tokens = false;  // to what the template writes
};

// About the most memory that the JSON text `body` takes while it is read, beside its own: parsed, and its texts as
// tokens. Found in a pass that takes none.
int64_t JsonBytes(std::string_view body);

// The request in `body`, JSON. `seed` is taken where the request has none. INVALID_ARGUMENT names the parameter, its
// value and what is allowed, also for a parameter that is not known, or known and not supported, and would change the
// answer; NOT_FOUND where another model is asked for.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(bool chat, std::string_view body, const ServedModel& model,
                                                uint64_t seed);

// The same of a chat in two steps, between which others than the chat template may make the prompt: `text`, of which
// `ids` are the tokens.
absl::StatusOr<OpenAiChat> ReadOpenAiChat(std::string_view body, const ServedModel& model, uint64_t seed);
absl::StatusOr<OpenAiRequest> WithPrompt(OpenAiChat chat, std::string_view text, const std::vector<int32_t>& ids,
                                         const ServedModel& model);
// A message as clients send it, who send back what they were answered with, too. Errors as ReadChatMessage, and of what
// would not be read.
absl::StatusOr<ChatMessage> ReadOpenAiMessage(const nlohmann::ordered_json& given, const std::string& place);
// What is told of an error of the chat template, or of the tokenizer with what it writes: INVALID_ARGUMENT names the
// parameter that it comes from.
absl::Status ChatError(const OpenAiChat& chat, const Tokenizer& tokenizer, const absl::Status& error);

}  // namespace quartet
