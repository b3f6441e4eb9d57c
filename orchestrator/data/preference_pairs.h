// Pairs of answers of which one is preferred, read from rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/made_rows.h"
#include "orchestrator/data/sft_examples.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Two examples, as ExampleMaker makes them, with the same prompt.
struct PreferencePair {
  TokenSequence chosen;
  TokenSequence rejected;
  float margin = 0;
};

uint64_t HashItem(const PreferencePair& pair, uint64_t seed);

using PreferencePairs = MadeRows<PreferencePair>;

// Of config.preference(): those to learn from (`data`), or those that are held out (`eval_data`), in the order of their
// files. `model`, "actor" or "critic", is what reads them; `model_end_ids` are its end tokens. The tokenizer outlives
// them.
//
// INVALID_ARGUMENT names the option, or file and row of a pair that is not well-formed, or, where these are not left
// out, of which an answer with its prompt is longer than the model's max_len.
absl::StatusOr<std::unique_ptr<PreferencePairs>> OpenPreferencePairs(const RunConfig& config, bool held_out,
                                                                     const std::string& model,
                                                                     const Tokenizer& tokenizer,
                                                                     const std::vector<int64_t>& model_end_ids,
                                                                     const RowProgress& progress = nullptr);

}  // namespace quartet
