// Whether what came back answers what was asked. gRPC-free.
//
// Each item must be answered exactly once, in any order, with the right number of finite values. INTERNAL says what is
// wrong. Indices of what is asked are unique.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {

// Sequences that lie where others own them, for the length of a call. What is sent of each has its place as index.
using SequenceSpan = absl::Span<const TokenSequence* const>;

// What there is a value of.
enum class ValuesOf { kActionTokens, kSequences };

// One array a sequence, in the order of `sequences`: one value an action token, or one alone.
absl::StatusOr<std::vector<std::vector<float>>> OrderTokenValues(SequenceSpan sequences,
                                                                 const std::vector<const TokenValues*>& replies,
                                                                 ValuesOf of = ValuesOf::kActionTokens);

// The answers of a rollout as they come. Every sequence begins with its prompt, has between 1 and max_new_tokens tokens
// after it, all of them actions, made by header.policy_version alone, and came to its own end. One thread.
class GeneratedReplies {
 public:
  // Both outlive this; indices of prompts are unique.
  GeneratedReplies(const GenerateHeader& header, const std::vector<Prompt>& prompts);

  // The place of its prompt among the prompts.
  absl::StatusOr<size_t> Add(GenerateReply reply);
  // Whether all samples of a prompt are there.
  bool IsComplete(size_t prompt) const { return missing_[prompt] == 0; }
  const GeneratedSequence& sequence(size_t prompt, int sample) const { return sequences_[prompt * samples_ + sample]; }
  int samples() const { return samples_; }

  // Those of some prompts, by prompt in the order given, then by sample; INTERNAL where one is missing.
  absl::StatusOr<std::vector<GeneratedSequence>> Take(const std::vector<size_t>& prompts);

 private:
  const GenerateHeader& header_;
  const std::vector<Prompt>& prompts_;
  const int samples_;
  std::unordered_map<uint64_t, size_t> places_;
  std::vector<int> missing_;
  std::vector<bool> seen_;
  std::vector<GeneratedSequence> sequences_;
};

// In the order of `indices`, those of the items that were sent. A reply has a finite reward, or an error.
absl::StatusOr<std::vector<ScoreReply>> OrderScores(const std::vector<uint64_t>& indices,
                                                    std::vector<ScoreReply> replies);

}  // namespace quartet
