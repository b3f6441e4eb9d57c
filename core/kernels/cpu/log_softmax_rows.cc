#include "core/kernels/cpu/log_softmax_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/hardware/simd.h"

namespace quartet {
namespace {

using simd::F16;
using simd::kLanes;

// Vectors that a processor works on side by side.
constexpr int kVectors = 4;

// The vector that starts at `from`, of which `left` lie in the row; what lies behind has weight 0.
QUARTET_SIMD_INLINE F16 LoadLogits(const float* from, int64_t left) {
  if (left >= kLanes) return simd::Load(from);
  const F16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < simd::Splat(static_cast<float>(left)) ? simd::LoadSome(from, left)
                                                      : simd::Splat(-std::numeric_limits<float>::infinity());
}

QUARTET_SIMD_INLINE float Largest(const float* logits, int64_t count) {
  F16 largest[kVectors];
  for (F16& part : largest) part = simd::Splat(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; i += kVectors * kLanes) {
    for (int v = 0; v < kVectors && i + v * kLanes < count; ++v) {
      const F16 value = LoadLogits(logits + i + v * kLanes, count - i - v * kLanes);
      largest[v] = value > largest[v] ? value : largest[v];
    }
  }
  for (int v = 1; v < kVectors; ++v) largest[0] = largest[v] > largest[0] ? largest[v] : largest[0];
  return simd::Max(largest[0]);
}

// Of what lies in the row: the sum of e^x with x = (logit - largest) * scale, and, with kWeighted, that of x e^x.
struct Sums {
  float exponentials, weighted;
};
template <bool kWeighted>
QUARTET_SIMD_INLINE Sums SumRow(const float* logits, int64_t count, float largest, float scale) {
  F16 sums[kVectors] = {}, weighted[kVectors] = {};
  for (int64_t i = 0; i < count; i += kVectors * kLanes) {
    for (int v = 0; v < kVectors && i + v * kLanes < count; ++v) {
      const int64_t left = count - i - v * kLanes;
      const F16 x = (LoadLogits(logits + i + v * kLanes, left) - largest) * scale;
      const F16 exponential = simd::ExpNonPositive(x);
      sums[v] += exponential;
      if (!kWeighted) continue;
      // 0 times minus infinity is no number.
      const F16 product = exponential * x;
      weighted[v] += left >= kLanes ? product : (exponential > 0 ? product : F16{});
    }
  }
  for (int v = 1; v < kVectors; ++v) {
    sums[0] += sums[v];
    weighted[0] += weighted[v];
  }
  return {simd::Sum(sums[0]), simd::Sum(weighted[0])};
}

// A row's part of the entropy's gradient: d entropy / d logit = -p (log p + entropy) / temperature.
struct EntropyRow {
  float scale, log_sum, entropy, gradient;

  QUARTET_SIMD_INLINE F16 At(F16 logits) const {
    const F16 log_probability = logits * scale - log_sum;
    return simd::ExpNonPositive(log_probability) * (log_probability + entropy) * (-gradient * scale);
  }
};

}  // namespace

QUARTET_SIMD_CLONES void LogSoftmaxRows(const float* logits, const RowTargets& targets, float temperature, int64_t rows,
                                        int64_t vocabulary, float* log_probs, float* log_sums,
                                        const EntropyResult* entropy) {
  const float scale = 1 / temperature;
  const float entropy_scale = entropy == nullptr ? 0 : 1 / entropy->temperature;
  for (int64_t r = 0; r < rows; ++r, logits += vocabulary) {
    const float largest = Largest(logits, vocabulary);
    const Sums sums = entropy_scale == scale ? SumRow<true>(logits, vocabulary, largest, scale)
                                             : SumRow<false>(logits, vocabulary, largest, scale);
    const float log_sum = std::log(sums.exponentials);
    for (int64_t i = targets.Begin(r); i < targets.Begin(r + 1); ++i) {
      log_probs[i] = (logits[targets.ids[i]] - largest) * scale - log_sum;
    }
    log_sums[r] = largest * scale + log_sum;
    if (entropy == nullptr) continue;
    const Sums own = entropy_scale == scale ? sums : SumRow<true>(logits, vocabulary, largest, entropy_scale);
    const float own_log_sum = std::log(own.exponentials);
    entropy->entropies[r] = own_log_sum - own.weighted / own.exponentials;
    entropy->log_sums[r] = largest * entropy_scale + own_log_sum;
  }
}

// d log_prob / d logits = (onehot - softmax) / temperature, summed over a row's targets.
template <typename Element>
QUARTET_SIMD_CLONES void LogSoftmaxRowsGradient(const float* logits, const RowTargets& targets, float temperature,
                                                const float* log_sums, const float* gradients,
                                                const EntropyGradient* entropy, int64_t rows, int64_t vocabulary,
                                                Element* logits_gradients) {
  const float scale = 1 / temperature;
  std::vector<float> of_targets;  // logits, which may be written over
  for (int64_t r = 0; r < rows; ++r, logits += vocabulary, logits_gradients += vocabulary) {
    const int64_t begin = targets.Begin(r), end = targets.Begin(r + 1);
    float sum = 0;
    of_targets.clear();
    for (int64_t i = begin; i < end; ++i) {
      sum += gradients[i];
      of_targets.push_back(logits[targets.ids[i]]);
    }
    const float gradient = sum * scale;
    const EntropyRow of_entropy = entropy == nullptr ? EntropyRow{}
                                                     : EntropyRow{1 / entropy->temperature, entropy->log_sums[r],
                                                                  entropy->entropies[r], entropy->gradients[r]};
    for (int64_t i = 0; i < vocabulary; i += kLanes) {
      const F16 logit = simd::LoadSome(logits + i, vocabulary - i);
      F16 out = simd::ExpNonPositive(logit * scale - log_sums[r]) * -gradient;
      if (entropy != nullptr) out += of_entropy.At(logit);
      simd::StoreSome(logits_gradients + i, out, vocabulary - i);
    }
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = targets.ids[i];
      if (std::find(targets.ids + begin, targets.ids + i, id) != targets.ids + i) continue;
      float own = gradients[i];
      for (int64_t again = i + 1; again < end; ++again) own += targets.ids[again] == id ? gradients[again] : 0;
      const F16 logit = simd::Splat(of_targets[i - begin]);
      const F16 probability = simd::ExpNonPositive(logit * scale - log_sums[r]);
      F16 out = (1 - probability) * (own * scale) - probability * ((sum - own) * scale);
      if (entropy != nullptr) out += of_entropy.At(logit);
      Element lanes[kLanes];
      simd::Store(lanes, out);
      logits_gradients[id] = lanes[0];
    }
  }
}

template void LogSoftmaxRowsGradient<float>(const float*, const RowTargets&, float, const float*, const float*,
                                            const EntropyGradient*, int64_t, int64_t, float*);
template void LogSoftmaxRowsGradient<uint16_t>(const float*, const RowTargets&, float, const float*, const float*,
                                               const EntropyGradient*, int64_t, int64_t, uint16_t*);

}  // namespace quartet
