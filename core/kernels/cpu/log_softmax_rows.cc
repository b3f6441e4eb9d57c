#include "core/kernels/cpu/log_softmax_rows.h"

#include <cmath>
#include <limits>

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

QUARTET_SIMD_CLONES void LogSoftmaxRows(const float* logits, const int64_t* targets, float temperature, int64_t rows,
                                        int64_t vocabulary, float* log_probs, float* log_sums,
                                        const EntropyResult* entropy) {
  const float scale = 1 / temperature;
  const float entropy_scale = entropy == nullptr ? 0 : 1 / entropy->temperature;
  for (int64_t r = 0; r < rows; ++r, logits += vocabulary) {
    const float largest = Largest(logits, vocabulary);
    const Sums sums = entropy_scale == scale ? SumRow<true>(logits, vocabulary, largest, scale)
                                             : SumRow<false>(logits, vocabulary, largest, scale);
    const float log_sum = std::log(sums.exponentials);
    log_probs[r] = (logits[targets[r]] - largest) * scale - log_sum;
    log_sums[r] = largest * scale + log_sum;
    if (entropy == nullptr) continue;
    const Sums own = entropy_scale == scale ? sums : SumRow<true>(logits, vocabulary, largest, entropy_scale);
    const float own_log_sum = std::log(own.exponentials);
    entropy->entropies[r] = own_log_sum - own.weighted / own.exponentials;
    entropy->log_sums[r] = largest * entropy_scale + own_log_sum;
  }
}

// d log_prob / d logits = (onehot - softmax) / temperature.
template <typename Element>
QUARTET_SIMD_CLONES void LogSoftmaxRowsGradient(const float* logits, const int64_t* targets, float temperature,
                                                const float* log_sums, const float* gradients,
                                                const EntropyGradient* entropy, int64_t rows, int64_t vocabulary,
                                                Element* logits_gradients) {
  const float scale = 1 / temperature;
  for (int64_t r = 0; r < rows; ++r, logits += vocabulary, logits_gradients += vocabulary) {
    const float gradient = gradients[r] * scale;
    const float of_target = logits[targets[r]];
    const EntropyRow of_entropy = entropy == nullptr ? EntropyRow{}
                                                     : EntropyRow{1 / entropy->temperature, entropy->log_sums[r],
                                                                  entropy->entropies[r], entropy->gradients[r]};
    for (int64_t i = 0; i < vocabulary; i += kLanes) {
      const F16 logit = simd::LoadSome(logits + i, vocabulary - i);
      F16 out = simd::ExpNonPositive(logit * scale - log_sums[r]) * -gradient;
      if (entropy != nullptr) out += of_entropy.At(logit);
      simd::StoreSome(logits_gradients + i, out, vocabulary - i);
    }
    Element both[kLanes];
    F16 out = (1 - simd::ExpNonPositive(simd::Splat(of_target * scale - log_sums[r]))) * gradient;
    if (entropy != nullptr) out += of_entropy.At(simd::Splat(of_target));
    simd::Store(both, out);
    logits_gradients[targets[r]] = both[0];
  }
}

template void LogSoftmaxRowsGradient<float>(const float*, const int64_t*, float, const float*, const float*,
                                            const EntropyGradient*, int64_t, int64_t, float*);
template void LogSoftmaxRowsGradient<uint16_t>(const float*, const int64_t*, float, const float*, const float*,
                                               const EntropyGradient*, int64_t, int64_t, uint16_t*);

}  // namespace quartet
