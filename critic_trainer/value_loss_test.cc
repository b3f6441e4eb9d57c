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
};

class ValueLossTest : public ::testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Precisions, ValueLossTest,
                         ::testing::Values(Precision{at::kFloat, 1e-5}, Precision{at::kDouble, 1e-12}));

TEST_P(ValueLossTest, HasTheSameGradientHoweverTheBatchIsCut) {
  TrainableModelOptions options;
  options.model.head = HeadKind::kScalar;
  options.model.compute_dtype = GetParam().type;
  CriticUpdateHeader header;
  header.set_value_clip(0.2f);
  ExpectGradientDoesNotDependOnTheCut(
      "core/model/testdata/llama_critic", options, RandomTrainingSequences(14, 101, 8), GetParam().tolerance, [&] {
        return
            [&header, sums = std::make_shared<UpdateSums>()](
                const std::vector<const TrainingSequence*>& part, const PackedBatch& batch, const at::Tensor& hidden_TD,
                const at::Tensor& head_1D) { return ValueLoss(header, part, batch, hidden_TD, head_1D, sums.get()); };
      });
}

}  // namespace
}  // namespace quartet
