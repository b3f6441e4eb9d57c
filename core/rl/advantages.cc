#include "core/rl/advantages.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

constexpr double kMinVariance = 1e-8;

}  // namespace

std::vector<float> TokenRewards(float reward, float clip_min, float clip_max, std::span<const float> kl,
                                double kl_coefficient, size_t tokens) {
  QUARTET_CHECK(tokens > 0);
  QUARTET_CHECK(kl.empty() || kl.size() == tokens);
  std::vector<double> rewards(tokens, 0.0);
  for (size_t t = 0; t < kl.size(); ++t) rewards[t] = -kl_coefficient * static_cast<double>(kl[t]);
  rewards.back() += std::clamp(reward, clip_min, clip_max);
  return std::vector<float>(rewards.begin(), rewards.end());
}

AdvantagesAndReturns EstimateAdvantages(std::span<const float> rewards, std::span<const float> values, double gamma,
                                        double lambda) {
  QUARTET_CHECK(rewards.size() == values.size());
  AdvantagesAndReturns result;
  result.advantages.resize(rewards.size());
  result.returns.resize(rewards.size());
  double next_value = 0;
  double next_advantage = 0;
  for (size_t i = rewards.size(); i-- > 0;) {
    const double value = values[i];
    const double delta = rewards[i] + gamma * next_value - value;
    const double advantage = delta + gamma * lambda * next_advantage;
    result.advantages[i] = static_cast<float>(advantage);
    result.returns[i] = static_cast<float>(advantage + value);
    next_value = value;
    next_advantage = advantage;
  }
  return result;
}

absl::StatusOr<AdvantageNormalization> ParseAdvantageNormalization(std::string_view name) {
  if (name == "none") return AdvantageNormalization::kNone;
  if (name == "center") return AdvantageNormalization::kCenter;
  if (name == "whiten") return AdvantageNormalization::kWhiten;
  return absl::InvalidArgumentError(
      absl::StrCat("advantage normalization \"", std::string(name), "\" is not known; allowed: whiten, center, none"));
}

void NormalizeAdvantages(std::span<std::vector<float>> advantages, AdvantageNormalization normalization) {
  if (normalization == AdvantageNormalization::kNone) return;
  double sum = 0;
  size_t count = 0;
  for (const std::vector<float>& sequence : advantages) {
    for (float a : sequence) sum += a;
    count += sequence.size();
  }
  if (count == 0) return;
  const double mean = sum / static_cast<double>(count);
  double scale = 1;
  if (normalization == AdvantageNormalization::kWhiten) {
    double squares = 0;
    for (const std::vector<float>& sequence : advantages) {
      for (float a : sequence) squares += (a - mean) * (a - mean);
    }
    scale = 1 / std::sqrt(std::max(squares / static_cast<double>(count), kMinVariance));
  }
  for (std::vector<float>& sequence : advantages) {
    for (float& a : sequence) a = static_cast<float>((a - mean) * scale);
  }
}

}  // namespace quartet
