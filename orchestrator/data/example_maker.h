// From a conversation to an example to learn from: put through the chat template, tokenised, ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/conversation.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct ExampleOptions {
  DataConfig data;
  std::string section;                   // of the options below: "sft", "preference"
  std::optional<std::string> end_token;  // <section>.end_token, where it is set
  bool multiturn = false;                // <section>.multiturn
  std::string model;                     // the section of what is trained: "actor", "critic"
  std::string model_folder;              // <model>.pretrain
  int64_t max_len = 0;                   // <model>.max_len
  std::vector<int64_t> model_end_ids;    // the model's end tokens; may be empty where end_token is set
};

// Immutable.
class ExampleMaker {
 public:
  // INVALID_ARGUMENT names the option. The tokenizer outlives this.
  static absl::StatusOr<std::unique_ptr<ExampleMaker>> Create(ExampleOptions options, const Tokenizer& tokenizer);

  // The actions are what is learned: the tokens of the last message, the assistant's (with `multiturn`, of all of its),
  // up to its end token. Each answer follows the very ids that generation would have for its prompt.
  //
  // INVALID_ARGUMENT: the chat template does not write an answer behind its prompt; the prompt or the answer has no
  // token; CheckOneBos. OUT_OF_RANGE: longer than `max_len`.
  absl::StatusOr<TokenSequence> Make(const Conversation& conversation) const;

 private:
  struct Example;
  ExampleMaker(ExampleOptions options, const Tokenizer& tokenizer)
      : options_(std::move(options)), tokenizer_(tokenizer) {}
  absl::Status ReadEnd();
  bool Ends(const std::vector<int32_t>& ids) const { return !ids.empty() && ends_.contains(ids.back()); }
  absl::StatusOr<Example> OfTexts(const Conversation& conversation) const;
  absl::StatusOr<Example> OfTurns(const Conversation& conversation) const;
  void End(const std::vector<int32_t>& answer, Example* example) const;

  const ExampleOptions options_;
  const Tokenizer& tokenizer_;
  std::optional<int32_t> end_token_;  // put behind what ends in none of ends_
  std::set<int32_t> ends_;
};

}  // namespace quartet
