#include "core/training/testing/whole_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/rank/rank_setup.h"
#include "core/rl/options/token_arrays.h"
#include "core/rl/testing/token_arrays.h"
#include "core/training/batch/batch_check.h"
#include "core/training/batch/sequence_tree.h"
#include "core/training/testing/engine_ranks.h"

namespace quartet {
namespace {

WholeGradient GradientOfCut(const std::string& folder, const TrainableModelOptions& options,
                            const std::vector<TrainingSequence>& sequences, int ranks, const MicroBatchLimit& limit,
                            const std::function<MicroBatchLoss()>& make_loss) {
  std::vector<const TokenSequence*> batch;
  for (const TrainingSequence& sequence : sequences) batch.push_back(&sequence.tokens());
  const BatchSplit split = SplitTree(batch, ranks, limit, {.per_token = 1, .sharing = Sharing::kBlocks});
  return GradientOf(folder, options, sequences, split, make_loss);
}

// Norm of the difference over norm of `b`.
double Difference(const WholeGradient& a, const WholeGradient& b) {
  EXPECT_EQ(a.of.size(), b.of.size());
  double difference = 0, norm = 0;
  for (const auto& [parameter, values] : b.of) {
    const std::vector<double>& others = a.of.at(parameter);
    EXPECT_EQ(others.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      difference += (others[i] - values[i]) * (others[i] - values[i]);
      norm += values[i] * values[i];
    }
  }
  EXPECT_GT(norm, 0);
  return std::sqrt(difference / norm);
}

// Where the action tokens of the second turn begin among all.
int ActionsOfFirstTurn(const TokenSequence& conversation) {
  const auto& mask = conversation.action_mask();
  const auto first = std::find(mask.begin(), mask.end(), true);
  return static_cast<int>(std::find(first, mask.end(), false) - first);
}

// One of the two turns of a conversation, with what its arrays say of that turn's action tokens.
TrainingSequence Turn(const TrainingSequence& conversation, bool second, bool scales_advantages) {
  const TokenSequence& all = conversation.tokens();
  const int first_actions = ActionsOfFirstTurn(all), actions = CountActions(all);
  TrainingSequence turn;
  int seen = 0;
  for (int t = 0; t < all.ids_size() && (second || seen < first_actions); ++t) {
    const bool action = all.action_mask(t);
    turn.mutable_tokens()->add_ids(all.ids(t));
    turn.mutable_tokens()->add_action_mask(action && (seen >= first_actions) == second);
    seen += action ? 1 : 0;
  }
  for (const TokenArray& array : conversation.arrays()) {
    for (int a = second ? first_actions : 0; a < (second ? actions : first_actions); ++a) {
      MutableArray(array.name(), &turn).Add(array.values(a));
    }
  }
  if (!scales_advantages) return turn;
  const float scale =
      static_cast<float>(actions) / static_cast<float>(second ? actions - first_actions : first_actions);
  for (float& advantage : MutableArray(kAdvantages, &turn)) advantage *= scale;
  return turn;
}

}  // namespace

WholeGradient GradientOf(const std::string& folder, const TrainableModelOptions& options,
                         const std::vector<TrainingSequence>& sequences, const BatchSplit& split,
                         const std::function<MicroBatchLoss()>& make_loss) {
  WholeGradient result;
  std::mutex mutex;
  RunEngineRanks(static_cast<int>(split.items.size()), [&](const RankContext& context) {
    Ledger ledger;
    auto group = JoinRanks(context, "test");
    ASSERT_TRUE(group.ok()) << group.status();
    auto model = TrainableModel::Load(folder, options, group->get(), &ledger);
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<TrainingSequence> mine;
    for (size_t item : split.items[context.rank]) mine.push_back(sequences[item]);
    const std::vector<uint32_t>& sizes = split.micro_batch_sizes[context.rank];
    const auto done = AccumulateGradient(**model, mine, {sizes.begin(), sizes.end()}, make_loss());
    ASSERT_TRUE(done.ok()) << done.status();

    std::lock_guard lock(mutex);
    result.loss += done->loss;
    const ShardedModel& trained = (*model)->trained();
    for (const ParameterShard& piece : trained.parameter_shards()) {
      const ParameterSpec& parameter = trained.layout().groups[piece.group].parameters[piece.parameter];
      std::vector<double>& whole = result.of[parameter.name];
      whole.resize(parameter.numel());
      const at::Tensor part =
          (*model)->gradient(piece.group).narrow(0, piece.shard_offset, piece.count).to(at::kDouble).contiguous();
      // Shards do not overlap; where nothing is sharded the sum over ranks is still to come.
      for (int64_t i = 0; i < piece.count; ++i) whole[piece.begin + i] += part.const_data_ptr<double>()[i];
    }
  });
  return result;
}

std::vector<TrainingSequence> RandomTrainingSequences(int count, int vocab_size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<TrainingSequence> sequences(count);
  int actions = 0;
  for (int i = 0; i < count; ++i) {
    TokenSequence* tokens = sequences[i].mutable_tokens();
    tokens->set_index(i);
    // One very long among short ones, and some with a single action.
    int prompt = 1 + static_cast<int>(random() % 10), answer = i == 1 ? 80 : 1 + static_cast<int>(random() % 30);
    // Most begin as the one before the last does: two prompts of several answers, which may begin alike, too.
    const TokenSequence* like = i % 7 < 2 ? nullptr : &sequences[i - 2].tokens();
    const int alike = like == nullptr ? 0 : static_cast<int>(random() % like->ids_size());
    if (like != nullptr) prompt = like->ids_size() - CountActions(*like);
    for (int t = 0; t < prompt + answer; ++t) {
      const auto id = static_cast<int32_t>(random() % vocab_size);
      tokens->add_ids(like != nullptr && t < std::max(prompt, alike) && t < like->ids_size() ? like->ids(t) : id);
      tokens->add_action_mask(t >= prompt);
    }
    actions += answer;
    const float usual = -std::log(static_cast<float>(vocab_size));
    for (int t = 0; t < answer; ++t) {
      MutableArray(kOldLogProbs, &sequences[i]).Add(usual + 0.3f * normal(random));
      MutableArray(kAdvantages, &sequences[i]).Add(normal(random));
      MutableArray(kOldValues, &sequences[i]).Add(0.3f * normal(random));
      MutableArray(kReturns, &sequences[i]).Add(normal(random));
    }
  }
  for (TrainingSequence& sequence : sequences) {
    for (const float old : ArrayOf(sequence, kOldLogProbs)) {
      MutableArray(kRolloutLogProbs, &sequence).Add(old + 0.1f * normal(random));
      MutableArray(kReferenceLogProbs, &sequence).Add(old + 0.2f * normal(random));
    }
  }
  for (TrainingSequence& sequence : sequences) {
    MutableArray(kLossWeights, &sequence)
        .Resize(ArrayOf(sequence, kAdvantages).size(), 1.0f / static_cast<float>(actions));
  }
  return sequences;
}

std::vector<TrainingSequence> RandomConversations(int count, int vocab_size, uint32_t seed) {
  std::vector<TrainingSequence> conversations;
  for (TrainingSequence& sequence : RandomTrainingSequences(count, vocab_size, seed)) {
    const int actions = CountActions(sequence.tokens());
    if (actions < 3) continue;
    const int of_tool = actions / 3;  // at least one action before it and one behind
    sequence.mutable_tokens()->set_action_mask(sequence.tokens().ids_size() - actions + of_tool, false);
    for (TokenArray& array : *sequence.mutable_arrays()) {
      array.mutable_values()->erase(array.values().begin() + of_tool);
    }
    auto& advantages = MutableArray(kAdvantages, &sequence);
    std::fill(advantages.begin(), advantages.end(), advantages[0]);
    conversations.push_back(std::move(sequence));
  }
  return conversations;
}

std::vector<TrainingSequence> CutIntoTurns(const std::vector<TrainingSequence>& conversations, bool scales_advantages) {
  std::vector<TrainingSequence> turns;
  for (const TrainingSequence& conversation : conversations) {
    for (const bool second : {false, true}) {
      turns.push_back(Turn(conversation, second, scales_advantages));
      turns.back().mutable_tokens()->set_index(turns.size() - 1);
    }
  }
  return turns;
}

void ExpectGradientDoesNotDependOnTurns(const std::string& folder, const TrainableModelOptions& options,
                                        const std::vector<TrainingSequence>& conversations, bool scales_advantages,
                                        double tolerance, const std::function<MicroBatchLoss()>& make_loss) {
  const auto count = static_cast<int64_t>(conversations.size());
  const WholeGradient whole = GradientOfCut(folder, options, conversations, 1, {.sequences = count}, make_loss);
  const std::vector<TrainingSequence> turns = CutIntoTurns(conversations, scales_advantages);
  for (const int ranks : {1, 2}) {
    for (const int64_t sequences : {int64_t{1}, 2 * count}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, micro-batches of ", sequences, " sequences"));
      const WholeGradient cut = GradientOfCut(folder, options, turns, ranks, {.sequences = sequences}, make_loss);
      EXPECT_LE(Difference(cut, whole), tolerance);
    }
  }
}

void ExpectGradientDoesNotDependOnTheCut(const std::string& folder, const TrainableModelOptions& options,
                                         const std::vector<TrainingSequence>& sequences, double tolerance,
                                         const std::function<MicroBatchLoss()>& make_loss) {
  const auto count = static_cast<int64_t>(sequences.size());
  int64_t longest = 0;
  for (const TrainingSequence& sequence : sequences) longest = std::max<int64_t>(longest, sequence.tokens().ids_size());
  const WholeGradient together = GradientOfCut(folder, options, sequences, 1, {.sequences = count}, make_loss);
  const MicroBatchLimit one{.sequences = 1}, three{.sequences = 3}, all{.sequences = count}, tight{.tokens = longest},
      wide{.tokens = 3 * longest};
  struct Arrangement {
    int stage, ranks;
    std::vector<MicroBatchLimit> limits;
  };
  for (const auto& [stage, ranks, limits] :
       {Arrangement{3, 1, {one, tight}}, Arrangement{3, 2, {three, wide}}, Arrangement{3, 3, {one, all, tight}},
        Arrangement{2, 2, {three}}, Arrangement{0, 3, {wide}}}) {
    TrainableModelOptions staged = options;
    staged.model.zero_stage = stage;
    for (const MicroBatchLimit& limit : limits) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", ", ranks, " ranks, micro-batches of ", limit.sequences,
                                " sequences or ", limit.tokens, " tokens"));
      const WholeGradient cut = GradientOfCut(folder, staged, sequences, ranks, limit, make_loss);
      EXPECT_LE(Difference(cut, together), tolerance);
      EXPECT_LE(std::abs(cut.loss - together.loss), tolerance);
    }
  }
}

}  // namespace quartet
