// What every way to a reward has in common.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

// What there is to score.
struct Answer {
  // Prompt and answer as the model has read and written them, special tokens included.
  std::string query, prompt;
  // The answer without special tokens.
  std::string response;
  std::string label;   // "": there is none
  std::string source;  // where the prompt is from
  std::string row;     // other fields of the prompt's row, a JSON object; "": there are none
  // The conversation of an agent up to the answer, a JSON list of OpenAI's messages; "": there is none.
  std::string messages;
  int64_t tokens = 0;  // of the answer
  // What they are, and the text of each, special tokens included; empty unless a source gives rewards of tokens.
  std::vector<int32_t> token_ids;
  std::vector<std::string> token_texts;
  bool truncated = false;  // it has ended at its length limit
};

struct Reward {
  float value = 0;
  std::optional<float> score;               // beside it, for filtering groups
  std::map<std::string, float> extra_logs;  // further figures, by their names
  // Of each of the answer's tokens; `value` is their sum. Empty: it is not said which tokens `value` is of.
  std::vector<float> token_rewards = {};
};

// A source of rewards. Thread safe.
//
// Errors, each of one answer: INVALID_ARGUMENT: the label cannot be what the source was configured for, which is found
// whatever the answer (LabelReader gives it an empty one), or the answer's text cannot, whatever is tried;
// FAILED_PRECONDITION, UNIMPLEMENTED: trying again is of no use either; DATA_LOSS: nor can what it has said of other
// answers be trusted; CANCELLED: as asked. Others may pass.
class RewardFunction {
 public:
  virtual ~RewardFunction() = default;
  // One result an answer, in their order; at least one answer. Returns early, with CANCELLED, once `stop` is requested.
  virtual std::vector<absl::StatusOr<Reward>> Score(std::span<const Answer* const> answers, std::stop_token stop) = 0;
  // INVALID_ARGUMENT, where it is known by now, without an answer, that it cannot give rewards: what was configured is
  // wrong. UNAVAILABLE: it was not reached yet. Nothing is asked. Returns soon.
  virtual absl::Status Check() { return absl::OkStatus(); }
};

}  // namespace quartet
