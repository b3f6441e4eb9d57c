#include "rollout/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/splitmix64.h"
#include "core/hardware/simd.h"

namespace quartet {
namespace {

constexpr uint64_t kStride = kSplitMixStride;

// Token `id`'s uniform variable in (0, 1): the (id + 1)-th output of a SplitMix64 generator that starts at `key`.
inline double Uniform(uint64_t key, int32_t id) {
  return (static_cast<double>(SplitMixFinalise(key + (static_cast<uint64_t>(id) + 1) * kStride) >> 11) + 0.5) * 0x1p-53;
}

QUARTET_SIMD_CLONES float Largest(const float* values, int64_t count) {
  simd::F16 max = simd::Splat(-std::numeric_limits<float>::infinity());
  // A NaN compares false with everything; it is found because its difference with itself is not 0.
  simd::F16 poison = {};
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) {
    const simd::F16 v = simd::Load(values + i);
    max = v > max ? v : max;
    poison = v == v ? poison : v;
  }
  float largest = simd::Max(max);
  bool has_nan = false;
  for (int lane = 0; lane < simd::kLanes; ++lane) has_nan |= poison[lane] != poison[lane];
  for (; i < count; ++i) {
    if (values[i] > largest) largest = values[i];
    has_nan |= values[i] != values[i];
  }
  return has_nan ? std::numeric_limits<float>::quiet_NaN() : largest;
}

// weights[i] = exp(values[i] - largest), unless null; returns their sum. Lanes are added up in double every 64 vectors.
QUARTET_SIMD_CLONES double Weigh(const float* values, int64_t count, float largest, float* weights) {
  double total = 0;
  int64_t i = 0;
  while (i + simd::kLanes <= count) {
    simd::F16 sum = {};
    const int64_t end = std::min(count, i + 64 * simd::kLanes);
    for (; i + simd::kLanes <= end; i += simd::kLanes) {
      const simd::F16 w = simd::ExpNonPositive(simd::Load(values + i) - largest);
      if (weights != nullptr) simd::Store(weights + i, w);
      sum += w;
    }
    for (int lane = 0; lane < simd::kLanes; ++lane) total += sum[lane];
  }
  for (; i < count; ++i) {
    const float weight = std::exp(values[i] - largest);
    if (weights != nullptr) weights[i] = weight;
    total += weight;
  }
  return total;
}

// Running maximum of weight / E over tokens. Since -log(u) >= 1 - u, most tokens are ruled out without a logarithm.
class Race {
 public:
  explicit Race(uint64_t key) : key_(key) {}
  void Enter(int32_t id, float weight) {
    const double u = Uniform(key_, id);
    if (!(weight > best_ * (1 - u))) return;
    const double score = weight / -std::log(u);
    if (score > best_) {
      best_ = score;
      winner_ = id;
    }
  }
  double best() const { return best_; }
  int32_t winner() const { return winner_; }

 private:
  uint64_t key_;
  double best_ = 0;
  int32_t winner_ = 0;
};

typedef uint64_t U8 __attribute__((vector_size(64)));
typedef int64_t I8 __attribute__((vector_size(64)));
typedef double D8 __attribute__((vector_size(64)));
typedef float F8 __attribute__((vector_size(32)));

// Race::Enter for all of [0, count), eight at a time as long as none of them can win.
QUARTET_SIMD_CLONES int32_t RaceOfAll(uint64_t key, const float* weights, int64_t count) {
  constexpr int64_t kBlock = 64;
  constexpr U8 kLaneStrides = {kStride,     2 * kStride, 3 * kStride, 4 * kStride,
                               5 * kStride, 6 * kStride, 7 * kStride, 8 * kStride};
  Race race(key);
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    I8 may_win = {};
    for (int64_t j = i; j < i + kBlock; j += 8) {
      const U8 x = SplitMixFinalise(kLaneStrides + (key + static_cast<uint64_t>(j) * kStride));
      const D8 u = (__builtin_convertvector(x >> 11, D8) + 0.5) * 0x1p-53;
      F8 weight;
      std::memcpy(&weight, weights + j, sizeof(weight));
      may_win |= __builtin_convertvector(weight, D8) > race.best() * (1 - u);
    }
    int64_t any = 0;
    for (int lane = 0; lane < 8; ++lane) any |= may_win[lane];
    for (int64_t j = i; any != 0 && j < i + kBlock; ++j) race.Enter(static_cast<int32_t>(j), weights[j]);
  }
  for (; i < count; ++i) race.Enter(static_cast<int32_t>(i), weights[i]);
  return race.winner();
}

// log_softmax(logits / temperature) of a token.
struct LogProb {
  absl::Span<const float> logits;
  float temperature;
  double shift;  // log of the sum of exp(logits / temperature)
  float operator()(int32_t id) const {
    return static_cast<float>(static_cast<double>(logits[id] / temperature) - shift);
  }
};

}  // namespace

absl::Status Sampler::NotFinite(float largest) {
  return absl::InternalError(absl::StrCat("the model's logits are not finite: their maximum is ", largest));
}

absl::Status Sampler::NothingLeft() {
  return absl::InvalidArgumentError("min_tokens, logit_bias and penalties leave no token that can be drawn");
}

uint64_t NoiseKey(uint64_t seed, uint64_t prompt_index, int32_t sample, int64_t position) {
  uint64_t key = SplitMixFinalise(seed + kStride);
  key = SplitMixFinalise((key ^ prompt_index) + kStride);
  key = SplitMixFinalise((key ^ static_cast<uint64_t>(sample)) + kStride);
  return SplitMixFinalise((key ^ static_cast<uint64_t>(position)) + kStride);
}

absl::StatusOr<SampledToken> Sampler::Sample(absl::Span<const float> logits, const SamplingRule& rule,
                                             const SamplingHistory& history, uint64_t noise_key) {
  const int64_t count = static_cast<int64_t>(logits.size());
  weights_.resize(count);
  const float temperature = rule.greedy() ? 1 : rule.temperature;
  const bool edits = !history.forbidden.empty() || !rule.logit_bias.empty() || rule.repetition_penalty != 1 ||
                     rule.presence_penalty != 0 || rule.frequency_penalty != 0;
  // What is told is not what is drawn from.
  const bool differs = edits || temperature != rule.log_prob_temperature();
  float* const weights = rule.greedy() ? nullptr : weights_.data();
  const float* scaled = nullptr;
  float largest = Scale(logits, rule.log_prob_temperature(), &scaled);
  if (!std::isfinite(largest)) return NotFinite(largest);
  double mass = Weigh(scaled, count, largest, differs ? nullptr : weights);
  const LogProb log_prob{logits, rule.log_prob_temperature(), static_cast<double>(largest) + std::log(mass)};

  SampledToken token;
  FindAlternatives(logits, rule.alternatives, &token.alternatives);
  for (auto& [id, value] : token.alternatives) value = log_prob(id);

  if (edits) {
    edited_.assign(logits.begin(), logits.end());
    Edit(rule, history);
  }
  if (differs) {
    largest = Scale(edits ? absl::MakeConstSpan(edited_) : logits, temperature, &scaled);
    if (!std::isfinite(largest)) {
      return NothingLeft();
    }
    if (!rule.greedy()) mass = Weigh(scaled, count, largest, weights);
  }
  if (rule.greedy()) {
    token.id = static_cast<int32_t>(std::find(scaled, scaled + count, largest) - scaled);
    token.log_prob = log_prob(token.id);
    return token;
  }

  const bool cut_k = rule.top_k > 0 && rule.top_k < count;
  const bool cut_p = rule.top_p < 1;
  double kept_mass = mass;
  if (!cut_k && !cut_p && rule.min_p <= 0) {
    token.id = RaceOfAll(noise_key, weights, count);
  } else {
    kept_.clear();
    float threshold = -std::numeric_limits<float>::infinity();
    if (cut_k) {
      sorted_.assign(scaled, scaled + count);
      std::nth_element(sorted_.begin(), sorted_.begin() + (rule.top_k - 1), sorted_.end(), std::greater<float>());
      threshold = sorted_[rule.top_k - 1];
    }
    kept_mass = 0;
    for (int64_t i = 0; i < count; ++i) {
      // Tokens of weight 0 cannot be drawn; the likeliest one's weight is 1.
      if (scaled[i] < threshold || weights_[i] == 0 || weights_[i] < rule.min_p) continue;
      kept_.push_back(static_cast<int32_t>(i));
      kept_mass += weights_[i];
    }
    if (cut_p) {
      // Likeliest first, the lower id among equals; sorts only as many as it takes.
      const auto likelier = [this](int32_t a, int32_t b) {
        return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
      };
      const double wanted = kept_mass * rule.top_p;
      double sum = 0;
      size_t taken = 0;
      size_t ordered = 0;
      while (taken < kept_.size() && (taken == 0 || sum < wanted)) {
        if (taken == ordered) {
          const size_t next = std::min(kept_.size(), std::max<size_t>(64, ordered * 4));
          std::partial_sort(kept_.begin() + ordered, kept_.begin() + next, kept_.end(), likelier);
          ordered = next;
        }
        sum += weights_[kept_[taken++]];
      }
      kept_.resize(taken);
      kept_mass = sum;
    }
    Race race(noise_key);
    for (const int32_t id : kept_) race.Enter(id, weights_[id]);
    token.id = race.winner();
  }
  token.log_prob = log_prob(token.id);
  token.sampled_log_prob = static_cast<float>(static_cast<double>(scaled[token.id]) - largest - std::log(kept_mass));
  return token;
}

absl::StatusOr<SampledToken> Sampler::Score(absl::Span<const float> logits, const SamplingRule& rule, int32_t id,
                                            int32_t alternatives) {
  const float temperature = rule.log_prob_temperature();
  const float* scaled = nullptr;
  const float largest = Scale(logits, temperature, &scaled);
  if (!std::isfinite(largest)) return NotFinite(largest);
  const double mass = Weigh(scaled, static_cast<int64_t>(logits.size()), largest, nullptr);
  const LogProb log_prob{logits, temperature, static_cast<double>(largest) + std::log(mass)};
  SampledToken token;
  token.id = id;
  token.log_prob = log_prob(id);
  FindAlternatives(logits, alternatives, &token.alternatives);
  for (auto& [other, value] : token.alternatives) value = log_prob(other);
  return token;
}

float Sampler::Scale(absl::Span<const float> values, float temperature, const float** scaled) {
  const auto count = static_cast<int64_t>(values.size());
  *scaled = values.data();
  if (temperature != 1) {
    scaled_.resize(count);
    for (int64_t i = 0; i < count; ++i) scaled_[i] = values[i] / temperature;
    *scaled = scaled_.data();
  }
  return Largest(*scaled, count);
}

// Minimum length, bias and penalties, on edited_.
void Sampler::Edit(const SamplingRule& rule, const SamplingHistory& history) {
  for (const int32_t id : history.forbidden) edited_[id] = -std::numeric_limits<float>::infinity();
  for (const auto& [id, bias] : rule.logit_bias) edited_[id] += bias;
  counts_.resize(edited_.size());
  if (rule.repetition_penalty != 1) {
    for (const absl::Span<const int32_t> ids : {history.prompt, history.answer}) {
      for (const int32_t id : ids) {
        if (std::exchange(counts_[id], 1) != 0) continue;
        edited_[id] = edited_[id] > 0 ? edited_[id] / rule.repetition_penalty : edited_[id] * rule.repetition_penalty;
      }
    }
    for (const int32_t id : history.prompt) counts_[id] = 0;
    for (const int32_t id : history.answer) counts_[id] = 0;
  }
  if (rule.presence_penalty != 0 || rule.frequency_penalty != 0) {
    for (const int32_t id : history.answer) ++counts_[id];
    for (const int32_t id : history.answer) {
      const int32_t times = std::exchange(counts_[id], 0);
      if (times == 0) continue;
      edited_[id] -= rule.frequency_penalty * static_cast<float>(times) + rule.presence_penalty;
    }
  }
}

void Sampler::FindAlternatives(absl::Span<const float> logits, int32_t count,
                               std::vector<std::pair<int32_t, float>>* found) {
  if (count <= 0) return;
  const auto likelier = [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  };
  // A heap whose top is the least likely of those found so far.
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    const std::pair candidate(id, logits[id]);
    if (static_cast<int32_t>(found->size()) == count) {
      if (!likelier(candidate, found->front())) continue;
      std::pop_heap(found->begin(), found->end(), likelier);
      found->pop_back();
    }
    found->push_back(candidate);
    std::push_heap(found->begin(), found->end(), likelier);
  }
  std::sort_heap(found->begin(), found->end(), likelier);
}

}  // namespace quartet
