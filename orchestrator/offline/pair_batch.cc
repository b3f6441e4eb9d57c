#include "orchestrator/offline/pair_batch.h"

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"

namespace quartet {
std::vector<const TokenSequence*> SequencesOf(const std::vector<PreferencePair>& pairs) {
  std::vector<const TokenSequence*> sequences;
  for (const PreferencePair& pair : pairs) sequences.insert(sequences.end(), {&pair.chosen, &pair.rejected});
  return sequences;
}

std::vector<TrainingSequence> TrainingPairs(const std::vector<PreferencePair>& pairs) {
  const std::vector<const TokenSequence*> sequences = SequencesOf(pairs);
  std::vector<TrainingSequence> batch(sequences.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    *batch[i].mutable_tokens() = *sequences[i];
    batch[i].mutable_tokens()->set_index(i);
    if (i % 2 != 0) continue;
    batch[i].mutable_pair()->set_weight(1.0f / static_cast<float>(pairs.size()));
    batch[i].mutable_pair()->set_margin(pairs[i / 2].margin);
  }
  return batch;
}

absl::StatusOr<std::optional<PairStats>> JudgePairs(PreferencePairs* held_out, const PairRewards& rewards) {
  if (held_out == nullptr) return std::nullopt;
  const int64_t count = held_out->rows().rows();
  double chosen = 0, rejected = 0, preferred = 0;
  // So that neither memory nor a call grows with their number.
  for (int64_t begin = 0; begin < count; begin += kPairsAtATime) {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<PreferencePair> pairs,
                             held_out->Take(begin, std::min(kPairsAtATime, count - begin)));
    QUARTET_ASSIGN_OR_RETURN(const std::vector<double> found, rewards(SequencesOf(pairs)));
    for (size_t i = 0; i < found.size(); i += 2) {
      chosen += found[i];
      rejected += found[i + 1];
      preferred += found[i] > found[i + 1] ? 1 : 0;
    }
  }
  const auto all = static_cast<double>(count);
  PairStats stats;
  stats.set_pairs(static_cast<uint64_t>(count));
  stats.set_accuracy(preferred / all);
  stats.set_chosen_reward(chosen / all);
  stats.set_rejected_reward(rejected / all);
  stats.set_margin((chosen - rejected) / all);
  return stats;
}

}  // namespace quartet
