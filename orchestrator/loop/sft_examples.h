// Examples of fine-tuning: read, put through the chat template, tokenised, ended.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The examples of config.sft().data(), their actions being what is trained on: the tokens of the answer (with
// sft.multiturn, of all of the assistant's) up to its end token. Each answer follows the very ids that generation would
// have for its prompt. `model_end_ids`: the model's end tokens; may be empty where sft.end_token is set.
//
// INVALID_ARGUMENT names the option, or file and line of an example longer than actor.max_len, without an answer, or
// whose chat template does not write an answer behind its prompt.
absl::StatusOr<std::vector<TokenSequence>> LoadSftExamples(const RunConfig& config, const Tokenizer& tokenizer,
                                                           const std::vector<int64_t>& model_end_ids);

}  // namespace quartet
