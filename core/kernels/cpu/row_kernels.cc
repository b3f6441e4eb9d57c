#include "core/kernels/cpu/row_kernels.h"

#include <algorithm>
#include <cmath>

#include "core/hardware/simd.h"

namespace quartet {
namespace {

using simd::F16;
using simd::kLanes;
using simd::LoadSome;
using simd::StoreSome;

// Sums of rows are taken in this many vectors, which a processor adds side by side.
constexpr int kSums = 4;

// The sum over a row of what term(i) gives for the vector that starts at i.
template <typename Term>
QUARTET_SIMD_INLINE float SumOfRow(int64_t size, const Term& term) {
  F16 sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kLanes <= size; i += kSums * kLanes) {
    for (int s = 0; s < kSums; ++s) sums[s] += term(i + s * kLanes);
  }
  for (; i < size; i += kLanes) sums[0] += term(i);
  return simd::Sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <typename Element>
struct Square {
  const Element* x;
  int64_t size;
  QUARTET_SIMD_INLINE F16 operator()(int64_t i) const {
    const F16 value = LoadSome(x + i, size - i);
    return value * value;
  }
};

template <typename Element>
struct WeightedProduct {
  const Element *x, *weight, *gradient;
  int64_t size;
  QUARTET_SIMD_INLINE F16 operator()(int64_t i) const {
    return LoadSome(x + i, size - i) * LoadSome(weight + i, size - i) * LoadSome(gradient + i, size - i);
  }
};

// 1 / (1 + e^-x), from e^-|x| so that nothing overflows.
QUARTET_SIMD_INLINE F16 Sigmoid(const F16& x) {
  const F16 e = simd::ExpNonPositive(x < 0 ? x : -x);
  return (x < 0 ? e : simd::Splat(1)) / (1 + e);
}

}  // namespace

template <typename Element>
QUARTET_SIMD_CLONES void RmsNormRows(const Element* x, const Element* weight, double eps, int64_t rows, int64_t size,
                                     Element* out, float* inverse_rms) {
  for (int64_t r = 0; r < rows; ++r, x += size, out += size) {
    const float mean = SumOfRow(size, Square<Element>{x, size}) / static_cast<float>(size);
    const float scale = 1.0f / std::sqrt(mean + static_cast<float>(eps));
    if (inverse_rms != nullptr) inverse_rms[r] = scale;
    for (int64_t i = 0; i < size; i += kLanes) {
      const F16 normed = simd::RoundedTo<Element>(LoadSome(x + i, size - i) * scale);
      StoreSome(out + i, LoadSome(weight + i, size - i) * normed, size - i);
    }
  }
}

// With s = 1 / rms and g = weight * out_gradient: x_gradient = s (g - x s^2 mean(g x)).
template <typename Element>
QUARTET_SIMD_CLONES void RmsNormRowsGradient(const Element* x, const Element* weight, const float* inverse_rms,
                                             const Element* out_gradient, int64_t rows, int64_t size,
                                             Element* x_gradient, float* weight_gradient) {
  if (weight_gradient != nullptr) std::fill_n(weight_gradient, size, 0.0f);
  for (int64_t r = 0; r < rows; ++r, x += size, out_gradient += size, x_gradient += size) {
    const float scale = inverse_rms[r];
    const float along = SumOfRow(size, WeightedProduct<Element>{x, weight, out_gradient, size}) * scale * scale /
                        static_cast<float>(size);
    for (int64_t i = 0; i < size; i += kLanes) {
      const F16 value = LoadSome(x + i, size - i), gradient = LoadSome(out_gradient + i, size - i);
      StoreSome(x_gradient + i, (gradient * LoadSome(weight + i, size - i) - value * along) * scale, size - i);
      if (weight_gradient == nullptr) continue;
      const F16 sum = LoadSome(weight_gradient + i, size - i) + gradient * simd::RoundedTo<Element>(value * scale);
      StoreSome(weight_gradient + i, sum, size - i);
    }
  }
}

template <typename Element>
QUARTET_SIMD_CLONES void RotateRows(const Element* x, const float* cosines, const float* sines, int64_t table_stride,
                                    bool back, int64_t tokens, int64_t heads, int64_t d, Element* out) {
  const int64_t half = d / 2;
  const float sign = back ? -1 : 1;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h, x += d, out += d) {
      for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t count = half - i;
        const F16 cosine = LoadSome(cosines + t * table_stride + i, count);
        const F16 sine = LoadSome(sines + t * table_stride + i, count) * sign;
        const F16 first = LoadSome(x + i, count), second = LoadSome(x + half + i, count);
        StoreSome(out + i, first * cosine - second * sine, count);
        StoreSome(out + half + i, second * cosine + first * sine, count);
      }
    }
  }
}

template <typename Element>
QUARTET_SIMD_CLONES void SwiGluRow(const Element* gate, const Element* up, int64_t count, Element* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const F16 x = LoadSome(gate + i, count - i);
    StoreSome(out + i, simd::RoundedTo<Element>(x * Sigmoid(x)) * LoadSome(up + i, count - i), count - i);
  }
}

template <typename Element>
QUARTET_SIMD_CLONES void SwiGluRowGradient(const Element* gate, const Element* up, const Element* out_gradient,
                                           int64_t count, Element* gate_gradient, Element* up_gradient) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const F16 x = LoadSome(gate + i, left), gradient = LoadSome(out_gradient + i, left), sigmoid = Sigmoid(x);
    StoreSome(up_gradient + i, gradient * simd::RoundedTo<Element>(x * sigmoid), left);
    StoreSome(gate_gradient + i, gradient * LoadSome(up + i, left) * sigmoid * (1 + x * (1 - sigmoid)), left);
  }
}

template void RmsNormRows<float>(const float*, const float*, double, int64_t, int64_t, float*, float*);
template void RmsNormRows<uint16_t>(const uint16_t*, const uint16_t*, double, int64_t, int64_t, uint16_t*, float*);
template void RmsNormRowsGradient<float>(const float*, const float*, const float*, const float*, int64_t, int64_t,
                                         float*, float*);
template void RmsNormRowsGradient<uint16_t>(const uint16_t*, const uint16_t*, const float*, const uint16_t*, int64_t,
                                            int64_t, uint16_t*, float*);
template void RotateRows<float>(const float*, const float*, const float*, int64_t, bool, int64_t, int64_t, int64_t,
                                float*);
template void RotateRows<uint16_t>(const uint16_t*, const float*, const float*, int64_t, bool, int64_t, int64_t,
                                   int64_t, uint16_t*);
template void SwiGluRow<float>(const float*, const float*, int64_t, float*);
template void SwiGluRow<uint16_t>(const uint16_t*, const uint16_t*, int64_t, uint16_t*);
template void SwiGluRowGradient<float>(const float*, const float*, const float*, int64_t, float*, float*);
template void SwiGluRowGradient<uint16_t>(const uint16_t*, const uint16_t*, const uint16_t*, int64_t, uint16_t*,
                                          uint16_t*);

}  // namespace quartet
