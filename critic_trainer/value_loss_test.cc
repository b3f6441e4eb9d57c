// However a batch is cut into micro-batches and ranks, the critic's gradient is the same: what is left in fp32 is
// rounding, and in fp64 hardly that.
#include "critic_trainer/value_loss.h"

#include <gtest/gtest.h>

#include <memory>

#include "core/training/testing/whole_gradient.h"

namespace quartet {
namespace {

struct Precision {
  at::ScalarType type;
  double tolerance;
  double of_turns;  // tolerance of conversations that are cut into turns
};

class ValueLossTest : public ::testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Precisions, ValueLossTest,
                         ::testing::Values(Precision{at::kFloat, 1e-5, 1e-6}, Precision{at::kDouble, 1e-12, 1e-12}));

TrainableModelOptions CriticOptions() {
  TrainableModelOptions options;
  options.model.head = HeadKind::kScalar;
  options.model.compute_dtype = ValueLossTest::GetParam().type;
  return options;
}

MicroBatchLoss ClippedLoss() {
  return [sums = std::make_shared<UpdateSums>()](const std::vector<const TrainingSequence*>& part,
                                                 const PackedBatch& batch, const at::Tensor& hidden_TD,
                                                 const at::Tensor& head_1D) {
    CriticUpdateHeader header;
    header.set_value_clip(0.2f);
    return ValueLoss(header, part, batch, hidden_TD, head_1D, sums.get());
  };
}

TEST_P(ValueLossTest, HasTheSameGradientHoweverTheBatchIsCut) {
  ExpectGradientDoesNotDependOnTheCut("core/model/testdata/llama_critic", CriticOptions(),
                                      RandomTrainingSequences(14, 101, 8), GetParam().tolerance, ClippedLoss);
}

TEST_P(ValueLossTest, HasTheSameGradientWhereAConversationIsASequenceATurn) {
  ExpectGradientDoesNotDependOnTurns("core/model/testdata/llama_critic", CriticOptions(),
                                     RandomConversations(14, 101, 8), /*scales_advantages=*/false, GetParam().of_turns,
                                     ClippedLoss);
}

}  // namespace
}  // namespace quartet
