// Examples of fine-tuning, read from rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/made_rows.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

uint64_t HashItem(const TokenSequence& example, uint64_t seed);

// Examples whose actions are what is trained on.
using SftExamples = MadeRows<TokenSequence>;

// The examples of config.sft().data(): the tokens of the answer (with sft.multiturn, of all of the assistant's) up to
// its end token are trained on. Each answer follows the very ids that generation would have for its prompt.
// `model_end_ids`: the model's end tokens; may be empty where sft.end_token is set. The tokenizer outlives them.
//
// INVALID_ARGUMENT names the option, or file and row of an example without an answer, whose chat template does not
// write an answer behind its prompt, or, where these are not left out, that is longer than actor.max_len.
absl::StatusOr<std::unique_ptr<SftExamples>> OpenSftExamples(const RunConfig& config, const Tokenizer& tokenizer,
                                                             const std::vector<int64_t>& model_end_ids,
                                                             const RowProgress& progress = nullptr);

}  // namespace quartet
