#include "core/rl/aggregation.h"

#include "core/base/logging.h"
#include "core/rl/options/option_name.h"

namespace quartet {

absl::StatusOr<LossAggregation> ParseLossAggregation(std::string_view name) {
  return ParseOptionName<LossAggregation>("loss aggregation", name,
                                          {{"token_mean", LossAggregation::kTokenMean},
                                           {"sequence_mean", LossAggregation::kSequenceMean},
                                           {"sequence_sum_over_constant", LossAggregation::kSequenceSumOverConstant}});
}

template <typename T>
std::vector<T> LossWeights(std::span<const AggregatedSequence> sequences, LossAggregation aggregation,
                           double constant) {
  QUARTET_CHECK(aggregation != LossAggregation::kSequenceSumOverConstant || constant > 0) << constant;
  const auto counts = [](const AggregatedSequence& s) { return s.action_tokens > 0 && !s.excluded; };
  double tokens = 0;
  double counted = 0;
  for (const AggregatedSequence& s : sequences) {
    if (!counts(s)) continue;
    tokens += static_cast<double>(s.action_tokens);
    counted += 1;
  }
  std::vector<T> weights;
  weights.reserve(sequences.size());
  for (const AggregatedSequence& s : sequences) {
    double weight = 0;
    if (counts(s)) {
      switch (aggregation) {
        case LossAggregation::kTokenMean:
          weight = 1 / tokens;
          break;
        case LossAggregation::kSequenceMean:
          weight = 1 / (counted * static_cast<double>(s.action_tokens));
          break;
        case LossAggregation::kSequenceSumOverConstant:
          weight = 1 / (counted * constant);
          break;
      }
    }
    weights.push_back(static_cast<T>(weight));
  }
  return weights;
}

template std::vector<float> LossWeights<float>(std::span<const AggregatedSequence>, LossAggregation, double);
template std::vector<double> LossWeights<double>(std::span<const AggregatedSequence>, LossAggregation, double);

}  // namespace quartet
