#include "core/rl/aggregation.h"

#include "absl/strings/str_cat.h"

namespace quartet {

absl::StatusOr<LossAggregation> ParseLossAggregation(std::string_view name) {
  if (name == "token_mean") return LossAggregation::kTokenMean;
  if (name == "sequence_mean") return LossAggregation::kSequenceMean;
  return absl::InvalidArgumentError(
      absl::StrCat("loss aggregation \"", std::string(name), "\" is not known; allowed: token_mean, sequence_mean"));
}

std::vector<float> LossWeights(std::span<const int64_t> action_tokens, LossAggregation aggregation) {
  int64_t tokens = 0;
  int64_t sequences = 0;
  for (int64_t n : action_tokens) {
    tokens += n;
    sequences += n > 0;
  }
  std::vector<float> weights(action_tokens.size(), 0.0f);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (action_tokens[i] <= 0) continue;
    const double normalizer = aggregation == LossAggregation::kTokenMean
                                  ? static_cast<double>(tokens)
                                  : static_cast<double>(sequences) * static_cast<double>(action_tokens[i]);
    weights[i] = static_cast<float>(1 / normalizer);
  }
  return weights;
}

}  // namespace quartet
