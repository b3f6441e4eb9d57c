#include "orchestrator/fine_tuning/pair_batch.h"

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"

namespace quartet {
namespace {

// Pairs of one call, so that no call grows with the number of those that are held out.
constexpr size_t kPairsOfACall = 256;

}  // namespace

std::vector<TokenSequence> SequencesOf(const std::vector<PreferencePair>& pairs) {
  std::vector<TokenSequence> sequences;
  sequences.reserve(2 * pairs.size());
  for (const PreferencePair& pair : pairs) {
    for (const TokenSequence* member : {&pair.chosen, &pair.rejected}) {
      sequences.push_back(*member);
      sequences.back().set_index(sequences.size() - 1);
    }
  }
  return sequences;
}

std::vector<TrainingSequence> TrainingPairs(const std::vector<PreferencePair>& pairs) {
  std::vector<TokenSequence> sequences = SequencesOf(pairs);
  std::vector<TrainingSequence> batch(sequences.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    *batch[i].mutable_tokens() = std::move(sequences[i]);
    if (i % 2 != 0) continue;
    batch[i].mutable_pair()->set_weight(1.0f / static_cast<float>(pairs.size()));
    batch[i].mutable_pair()->set_margin(pairs[i / 2].margin);
  }
  return batch;
}

absl::StatusOr<PairStats> JudgePairs(const std::vector<PreferencePair>& pairs, const RewardFunction& rewards) {
  double chosen = 0, rejected = 0, preferred = 0;
  for (size_t begin = 0; begin < pairs.size(); begin += kPairsOfACall) {
    const size_t end = std::min(begin + kPairsOfACall, pairs.size());
    QUARTET_ASSIGN_OR_RETURN(const std::vector<double> found,
                             rewards(SequencesOf({pairs.begin() + static_cast<std::ptrdiff_t>(begin),
                                                  pairs.begin() + static_cast<std::ptrdiff_t>(end)})));
    for (size_t i = 0; i < found.size(); i += 2) {
      chosen += found[i];
      rejected += found[i + 1];
      preferred += found[i] > found[i + 1] ? 1 : 0;
    }
  }
  const auto count = static_cast<double>(pairs.size());
  PairStats stats;
  stats.set_pairs(pairs.size());
  stats.set_accuracy(preferred / count);
  stats.set_chosen_reward(chosen / count);
  stats.set_rejected_reward(rejected / count);
  stats.set_margin((chosen - rejected) / count);
  return stats;
}

OfflinePlan PreferencePlan(const RunConfig& config, const std::string& name, const std::string& title,
                           const std::string& model, const std::string& saved) {
  const PreferenceConfig& p = config.preference();
  return {.name = name,
          .title = title,
          .section = "preference",
          .model = model,
          .saved = saved,
          .batch_size = p.batch_size(),
          .max_steps = p.max_steps(),
          .max_epochs = p.max_epochs(),
          .learning_rate = p.learning_rate(),
          .eval_steps = p.eval_steps()};
}

}  // namespace quartet
