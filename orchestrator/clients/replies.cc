#include "orchestrator/clients/replies.h"

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

namespace quartet {
namespace {

int64_t ActionTokens(const TokenSequence& sequence) {
  return std::count(sequence.action_mask().begin(), sequence.action_mask().end(), true);
}

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
  if (sequence.log_probs_size() != actions || sequence.policy_versions_size() != actions) {
    return absl::StrCat(sequence.log_probs_size(), " log-probabilities and ", sequence.policy_versions_size(),
                        " versions for ", actions, " tokens");
  }
  if (!AllFinite(sequence.log_probs())) return "a log-probability that is not finite";
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

absl::StatusOr<std::vector<std::vector<float>>> OrderTokenValues(const std::vector<TokenSequence>& sequences,
                                                                 const std::vector<const TokenValues*>& replies) {
  if (replies.size() != sequences.size()) {
    return absl::InternalError(absl::StrCat(replies.size(), " replies for ", sequences.size(), " sequences"));
  }
  Places places(sequences.size(), [&](size_t i) { return sequences[i].index(); });
  std::vector<std::vector<float>> ordered(sequences.size());
  for (const TokenValues* reply : replies) {
    QUARTET_ASSIGN_OR_RETURN(const size_t place, places.Take(reply->index()));
    const int64_t expected = ActionTokens(sequences[place]);
    if (reply->values_size() != expected) {
      return absl::InternalError(absl::StrCat("sequence ", reply->index(), " has ", expected, " action tokens but ",
                                              reply->values_size(), " values came"));
    }
    if (!AllFinite(reply->values())) {
      return absl::InternalError(absl::StrCat("sequence ", reply->index(), " has a value that is not finite"));
    }
    ordered[place].assign(reply->values().begin(), reply->values().end());
  }
  return ordered;
}

absl::StatusOr<std::vector<GeneratedSequence>> OrderGenerated(const GenerateHeader& header,
                                                              const std::vector<Prompt>& prompts,
                                                              std::vector<GenerateReply> replies) {
  const int samples = std::max(header.sampling().n_samples(), 1);
  std::unordered_map<uint64_t, size_t> positions;
  for (size_t i = 0; i < prompts.size(); ++i) positions[prompts[i].index()] = i;
  QUARTET_CHECK(positions.size() == prompts.size()) << "indices of prompts are not unique";
  if (replies.size() != prompts.size() * samples) {
    return absl::InternalError(
        absl::StrCat(replies.size(), " sequences instead of ", prompts.size(), " prompts times ", samples, " samples"));
  }
  std::vector<GeneratedSequence> ordered(replies.size());
  std::vector<bool> seen(replies.size());
  for (GenerateReply& message : replies) {
    GeneratedSequence& reply = *message.mutable_sequence();
    const auto position = positions.find(reply.prompt_index());
    const std::string name = absl::StrCat("prompt ", reply.prompt_index(), ", sample ", reply.sample());
    if (position == positions.end() || reply.sample() < 0 || reply.sample() >= samples) {
      return absl::InternalError(name + " was not asked for");
    }
    const size_t place = position->second * samples + reply.sample();
    if (seen[place]) return absl::InternalError(name + " came twice");
    seen[place] = true;
    if (const std::string wrong = CheckGenerated(reply, prompts[position->second], header); !wrong.empty()) {
      return absl::InternalError(absl::StrCat(name, " has ", wrong));
    }
    ordered[place] = std::move(reply);
  }
  return ordered;
}

absl::StatusOr<std::vector<ScoreReply>> OrderScores(const std::vector<ScoreItem>& items,
                                                    std::vector<ScoreReply> replies) {
  if (replies.size() != items.size()) {
    return absl::InternalError(absl::StrCat(replies.size(), " rewards for ", items.size(), " sequences"));
  }
  Places places(items.size(), [&](size_t i) { return items[i].tokens().index(); });
  std::vector<ScoreReply> ordered(items.size());
  for (ScoreReply& reply : replies) {
    QUARTET_ASSIGN_OR_RETURN(const size_t place, places.Take(reply.index()));
    if (!std::isfinite(reply.reward())) {
      return absl::InternalError(absl::StrCat("the reward of sequence ", reply.index(), " is not finite"));
    }
    ordered[place] = std::move(reply);
  }
  return ordered;
}

}  // namespace quartet
