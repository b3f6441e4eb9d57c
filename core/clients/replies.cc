#include "core/clients/replies.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/rl/options/token_arrays.h"

namespace quartet {
namespace {

bool AllFinite(const google::protobuf::RepeatedField<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Places by index, each of which is given out once.
class Places {
 public:
  // `index_of(i)` is the index of item i.
  template <typename IndexOf>
  Places(size_t count, const IndexOf& index_of) : taken_(count) {
    for (size_t i = 0; i < count; ++i) positions_[index_of(i)] = i;
    QUARTET_CHECK(positions_.size() == count) << "indices of a batch are not unique";
  }
  absl::StatusOr<size_t> Take(uint64_t index) {
    const auto position = positions_.find(index);
    if (position == positions_.end() || taken_[position->second]) {
      return absl::InternalError(absl::StrCat("sequence ", index, " was answered twice or not asked for"));
    }
    taken_[position->second] = true;
    return position->second;
  }

 private:
  std::unordered_map<uint64_t, size_t> positions_;
  std::vector<bool> taken_;
};

// What is wrong with a generated sequence, or "".
std::string CheckGenerated(const GeneratedSequence& sequence, const Prompt& prompt, const GenerateHeader& header) {
  const TokenSequence& tokens = sequence.tokens();
  const int prompt_length = prompt.ids_size();
  const int length = tokens.ids_size();
  if (length <= prompt_length || length > prompt_length + header.sampling().max_new_tokens()) {
    return absl::StrCat(length, " tokens after a prompt of ", prompt_length, " with max_new_tokens ",
                        header.sampling().max_new_tokens());
  }
  if (!std::equal(prompt.ids().begin(), prompt.ids().end(), tokens.ids().begin())) return "it lost its prompt";
  if (tokens.action_mask_size() != length) return absl::StrCat("an action mask of ", tokens.action_mask_size());
  for (int i = 0; i < length; ++i) {
    if (tokens.action_mask(i) != (i >= prompt_length)) return "an action mask that is not the answer";
  }
  const int actions = length - prompt_length;
  if (sequence.log_probs_size() != actions || sequence.sampled_log_probs_size() != actions ||
      sequence.policy_versions_size() != actions) {
    return absl::StrCat(sequence.log_probs_size(), " log-probabilities, ", sequence.sampled_log_probs_size(),
                        " of what was drawn from and ", sequence.policy_versions_size(), " versions for ", actions,
                        " tokens");
  }
  if (!AllFinite(sequence.log_probs()) || !AllFinite(sequence.sampled_log_probs()))
    return "a log-probability that is not finite";
  for (uint64_t version : sequence.policy_versions()) {
    if (version != header.policy_version()) {
      return absl::StrCat("a token of policy version ", version, " instead of ", header.policy_version());
    }
  }
  if (sequence.finish_reason() != GeneratedSequence::STOP && sequence.finish_reason() != GeneratedSequence::LENGTH) {
    return absl::StrCat("the finish reason ", GeneratedSequence::FinishReason_Name(sequence.finish_reason()));
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<std::vector<float>>> OrderTokenValues(SequenceSpan sequences,
                                                                 const std::vector<const TokenValues*>& replies,
                                                                 ValuesOf of) {
  if (replies.size() != sequences.size()) {
    return absl::InternalError(absl::StrCat(replies.size(), " replies for ", sequences.size(), " sequences"));
  }
  Places places(sequences.size(), [](size_t i) { return i; });
  std::vector<std::vector<float>> ordered(sequences.size());
  for (const TokenValues* reply : replies) {
    QUARTET_ASSIGN_OR_RETURN(const size_t place, places.Take(reply->index()));
    const bool of_sequences = of == ValuesOf::kSequences;
    const int64_t expected = of_sequences ? 1 : CountActions(*sequences[place]);
    if (reply->values_size() != expected) {
      return absl::InternalError(
          of_sequences ? absl::StrCat("sequence ", reply->index(), " has one value but ", reply->values_size(), " came")
                       : absl::StrCat("sequence ", reply->index(), " has ", expected, " action tokens but ",
                                      reply->values_size(), " values came"));
    }
    if (!AllFinite(reply->values())) {
      return absl::InternalError(absl::StrCat("sequence ", reply->index(), " has a value that is not finite"));
    }
    ordered[place].assign(reply->values().begin(), reply->values().end());
  }
  return ordered;
}

GeneratedReplies::GeneratedReplies(const GenerateHeader& header, const std::vector<Prompt>& prompts)
    : header_(header),
      prompts_(prompts),
      samples_(std::max(header.sampling().n_samples(), 1)),
      missing_(prompts.size(), samples_),
      seen_(prompts.size() * samples_),
      sequences_(prompts.size() * samples_) {
  for (size_t i = 0; i < prompts.size(); ++i) places_[prompts[i].index()] = i;
  QUARTET_CHECK(places_.size() == prompts.size()) << "indices of prompts are not unique";
}

absl::StatusOr<size_t> GeneratedReplies::Add(GenerateReply reply) {
  GeneratedSequence& sequence = *reply.mutable_sequence();
  const auto prompt = places_.find(sequence.prompt_index());
  const std::string name = absl::StrCat("prompt ", sequence.prompt_index(), ", sample ", sequence.sample());
  if (prompt == places_.end() || sequence.sample() < 0 || sequence.sample() >= samples_) {
    return absl::InternalError(name + " was not asked for");
  }
  const size_t place = prompt->second * samples_ + sequence.sample();
  if (seen_[place]) return absl::InternalError(name + " came twice");
  if (const std::string wrong = CheckGenerated(sequence, prompts_[prompt->second], header_); !wrong.empty()) {
    return absl::InternalError(absl::StrCat(name, " has ", wrong));
  }
  seen_[place] = true;
  --missing_[prompt->second];
  sequences_[place] = std::move(sequence);
  return prompt->second;
}

absl::StatusOr<std::vector<GeneratedSequence>> GeneratedReplies::Take(const std::vector<size_t>& prompts) {
  std::vector<GeneratedSequence> taken;
  taken.reserve(prompts.size() * samples_);
  for (const size_t prompt : prompts) {
    if (!IsComplete(prompt)) {
      return absl::InternalError(absl::StrCat(missing_[prompt], " of ", samples_, " samples of prompt ",
                                              prompts_[prompt].index(), " did not come"));
    }
    for (int sample = 0; sample < samples_; ++sample)
      taken.push_back(std::move(sequences_[prompt * samples_ + sample]));
  }
  return taken;
}

absl::StatusOr<std::vector<ScoreReply>> OrderScores(const std::vector<uint64_t>& indices,
                                                    std::vector<ScoreReply> replies) {
  if (replies.size() != indices.size()) {
    return absl::InternalError(absl::StrCat(replies.size(), " rewards for ", indices.size(), " sequences"));
  }
  Places places(indices.size(), [&](size_t i) { return indices[i]; });
  std::vector<ScoreReply> ordered(indices.size());
  for (ScoreReply& reply : replies) {
    QUARTET_ASSIGN_OR_RETURN(const size_t place, places.Take(reply.index()));
    if (reply.error().empty() && !(std::isfinite(reply.reward()) && std::isfinite(reply.score()))) {
      return absl::InternalError(absl::StrCat("the reward of sequence ", reply.index(), " is not finite"));
    }
    ordered[place] = std::move(reply);
  }
  return ordered;
}

}  // namespace quartet
