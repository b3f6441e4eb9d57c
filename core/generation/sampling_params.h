// What the fields of SamplingParams (proto/rollout.proto) may be. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/rollout.pb.h"

namespace quartet {

// INVALID_ARGUMENT names field, value and what is allowed. `reads_text`: stop strings can be found.
absl::Status CheckSamplingParams(const SamplingParams& sampling, int64_t vocab_size, bool reads_text);

// Of the message that tells all of an answer of `new_tokens` to a prompt of `prompt_len` tokens: at least what it
// takes.
int64_t AnswerBytes(const SamplingParams& sampling, int64_t prompt_len, int64_t new_tokens, int64_t vocab_size);

// The longest answer to a prompt of `prompt_len` tokens that fits into one message (kMaxMessageBytes) with all that is
// told of both; -1
// where not even the prompt does.
int64_t MostNewTokens(const SamplingParams& sampling, int64_t prompt_len, int64_t vocab_size);

// The same as CheckSamplingParams for a prompt that is to be served with `sampling`.
absl::Status CheckPrompt(const SamplingParams& sampling, uint64_t prompt_index, const std::vector<int32_t>& ids,
                         int64_t vocab_size);

}  // namespace quartet
