#include "core/training/testing/whole_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>

#include "absl/strings/str_cat.h"
#include "core/rank/rank_setup.h"
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
