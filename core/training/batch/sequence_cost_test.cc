#include "core/training/batch/sequence_cost.h"

#include <gtest/gtest.h>

#include "core/model/parameter_layout.h"
#include "core/model/testing/smollm2.h"

namespace quartet {
namespace {

TEST(SequenceCost, CountsTwoOperationsForEachWeightOfAMatrix) {
  const ModelConfig config = SmolLm2();
  const ParameterLayout layout = MakeParameterLayout(config, HeadKind::kVocabulary);
  int64_t block_weights = 0;  // norms do not multiply matrices
  for (const ParameterSpec& parameter : layout.groups[layout.block_group(0)].parameters) {
    if (parameter.shape.size() == 2) block_weights += parameter.numel();
  }
  const SequenceCost cost = MakeSequenceCost(config, HeadKind::kVocabulary, Sharing::kNone);
  EXPECT_EQ(cost.per_token, 2.0 * 30 * static_cast<double>(block_weights));
  EXPECT_EQ(cost.per_action, 2.0 * 49152 * 576);
  EXPECT_EQ(MakeSequenceCost(config, HeadKind::kScalar, Sharing::kNone).per_action, 2.0 * 576);
}

TEST(SequenceCost, CountsEachPairOfTokensThatAttend) {
  const SequenceCost cost = MakeSequenceCost(SmolLm2(), HeadKind::kScalar, Sharing::kNone);
  // Scores and weighted values, a multiplication and an addition each: 4 operations per pair, head and dimension.
  const double pairs = 1000.0 * 1000 / 2;
  EXPECT_DOUBLE_EQ(cost.Of(1000, 0) - 1000 * cost.per_token, 30 * 9 * 64 * 4 * pairs);
}

TEST(SequenceCost, MakesOneLongSequenceDearerThanShortOnesOfAsManyTokens) {
  const SequenceCost cost = MakeSequenceCost(SmolLm2(), HeadKind::kVocabulary, Sharing::kNone);
  EXPECT_GT(cost.Of(4096, 100), 8 * cost.Of(512, 100));
}

}  // namespace
}  // namespace quartet
