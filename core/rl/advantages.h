// From scalar rewards to the advantages and returns of every action token. Formulas: docs/algorithms.md.
//
// All arrays have one entry per action token of a sequence, in order.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// The reward of each token: -kl_coefficient * kl[t], and at the last token the scalar reward, clamped to
// [clip_min, clip_max], on top. `tokens` is the length; `kl` is as long, or empty for no penalty.
std::vector<float> TokenRewards(float reward, float clip_min, float clip_max, std::span<const float> kl,
                                double kl_coefficient, size_t tokens);

struct AdvantagesAndReturns {
  std::vector<float> advantages;
  std::vector<float> returns;
};

// Generalised advantage estimation (Schulman et al. 2016): delta_t = r_t + gamma V_{t+1} - V_t with V after the last
// token 0; A_t = delta_t + gamma lambda A_{t+1}; R_t = A_t + V_t.
AdvantagesAndReturns EstimateAdvantages(std::span<const float> rewards, std::span<const float> values, double gamma,
                                        double lambda);

enum class AdvantageNormalization {
  kNone,
  kCenter,  // A - mean
  kWhiten,  // (A - mean) / sqrt(max(population variance, 1e-8))
};

// "whiten", "center" or "none"; anything else is INVALID_ARGUMENT.
absl::StatusOr<AdvantageNormalization> ParseAdvantageNormalization(std::string_view name);

// In place, with mean and variance over all tokens of all sequences of the rollout batch.
void NormalizeAdvantages(std::span<std::vector<float>> advantages, AdvantageNormalization normalization);

}  // namespace quartet
