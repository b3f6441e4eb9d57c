#include "core/training/engine/pair_terms.h"

#include <ATen/ops/tensor.h>

namespace quartet {

PairTerms PairTermsOf(const std::vector<const TrainingSequence*>& part, at::Device device) {
  std::vector<float> weights, margins;
  for (size_t i = 0; i < part.size(); i += 2) {
    weights.push_back(part[i]->pair().weight());
    margins.push_back(part[i]->pair().margin());
  }
  const auto options = at::TensorOptions().dtype(at::kFloat);
  return {.weight_P = at::tensor(weights, options).to(device), .margin_P = at::tensor(margins, options).to(device)};
}

void AddPairs(const std::vector<const TrainingSequence*>& part, const PairLossResult& result, UpdateSums* sums) {
  sums->set_pairs(sums->pairs() + part.size() / 2);
  sums->set_preferred(sums->preferred() + result.preferred);
  sums->set_chosen_rewards(sums->chosen_rewards() + result.chosen_rewards);
  sums->set_rejected_rewards(sums->rejected_rewards() + result.rejected_rewards);
}

}  // namespace quartet
