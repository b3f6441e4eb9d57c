// Against sums of the same products in double precision, which are exact but for the last places.
#include "core/kernels/cpu/products/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/hardware/bf16.h"
#include "core/kernels/cpu/products/gemm_tiles.h"

namespace quartet {
namespace {

uint16_t Rounded(float value, uint16_t) { return ToBf16(value); }
float Rounded(float value, float) { return value; }
float Wide(uint16_t value) { return FromBf16(value); }
float Wide(float value) { return value; }

template <typename Element>
class GemmTest : public testing::Test {
 protected:
  std::vector<Element> Random(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<Element> values(count);
    for (Element& value : values) value = Rounded(normal(engine_), Element{});
    return values;
  }

 private:
  std::mt19937 engine_{7};
};

using Elements = testing::Types<uint16_t, float>;
class ElementNames {
 public:
  template <typename Element>
  static std::string GetName(int) {
    return sizeof(Element) == sizeof(float) ? "Fp32" : "Bf16";
  }
};
TYPED_TEST_SUITE(GemmTest, Elements, ElementNames);

template <typename Element>
std::vector<Element> Pack(const std::vector<Element>& b, int64_t N, int64_t K) {
  const int64_t panels = (N + kPanelRows - 1) / kPanelRows;
  std::vector<Element> packed(panels * PanelNumel<Element>(K), Element{7});
  for (int64_t p = 0; p < panels; ++p) {
    PackPanel(b.data() + p * kPanelRows * K, std::min(kPanelRows, N - p * kPanelRows), K, K,
              packed.data() + p * PanelNumel<Element>(K));
  }
  return packed;
}

// C in fp32; B as it is.
template <typename Element>
Gemm<Element> Describe(const std::vector<Element>& a, const std::vector<Element>& b, int64_t N, int64_t K,
                       std::vector<float>* c) {
  Gemm<Element> gemm;
  gemm.M = static_cast<int64_t>(a.size()) / K;
  gemm.N = N;
  gemm.K = K;
  gemm.a = a.data();
  gemm.a_stride = K;
  gemm.b = b.data();
  gemm.b_stride = K;
  c->assign(gemm.M * N, -1);
  if constexpr (std::is_same_v<Element, float>) {
    gemm.c = c->data();
  } else {
    gemm.c_fp32 = c->data();
  }
  gemm.c_stride = N;
  return gemm;
}

constexpr int64_t kDepths[] = {1, 2, 3, 31, 32, 33, 64, 97, 576};
constexpr int64_t kWidths[] = {1, 15, 16, 17, 50, 160};

TYPED_TEST(GemmTest, SumsWithinTheErrorOfOneSumAfterTheOther) {
  for (const int64_t K : kDepths) {
    for (const int64_t N : kWidths) {
      for (const int64_t M : {1, 5, 14, 31}) {
        const std::vector<TypeParam> a = this->Random(M * K), b = this->Random(N * K);
        std::vector<float> c;
        Multiply(Describe(a, b, N, K, &c), 0, M, 0, N);
        for (int64_t m = 0; m < M; ++m) {
          for (int64_t n = 0; n < N; ++n) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < K; ++k) {
              const double product = static_cast<double>(Wide(a[m * K + k])) * Wide(b[n * K + k]);
              sum += product;
              magnitude += std::abs(product);
            }
            // Each of K additions rounds by at most half a unit in the last place of what has been summed up.
            EXPECT_LE(std::abs(c[m * N + n] - sum), static_cast<double>(K) * 0x1p-24 * 1.001 * magnitude)
                << M << " x " << N << " x " << K << ", element " << m << ", " << n;
          }
        }
      }
    }
  }
}

// So that processors with registers of eight floats and of sixteen give the same bits.
TYPED_TEST(GemmTest, ByFloatsEachProductIsAddedWithOneRounding) {
#if defined(__x86_64__)
  if (sizeof(TypeParam) < sizeof(float) && CpuKernels() != "fp32") GTEST_SKIP() << "products here are of bf16";
  if (!__builtin_cpu_supports("avx512f")) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitized, loops are compiled for any CPU";
#endif
    if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "the CPU rounds products, too";
  }
  for (const int64_t K : kDepths) {
    for (const int64_t M : {1, 5, 14, 31}) {
      constexpr int64_t kN = 50;
      const std::vector<TypeParam> a = this->Random(M * K), b = this->Random(kN * K);
      std::vector<float> c;
      Multiply(Describe(a, b, kN, K, &c), 0, M, 0, kN);
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t n = 0; n < kN; ++n) {
          float sum = 0;
          for (int64_t k = 0; k < K; ++k) sum = std::fma(Wide(a[m * K + k]), Wide(b[n * K + k]), sum);
          ASSERT_EQ(c[m * kN + n], sum) << M << " x " << kN << " x " << K << ", element " << m << ", " << n;
        }
      }
    }
  }
#else
  GTEST_SKIP() << "what is here is x86-64's";
#endif
}

TYPED_TEST(GemmTest, GivesARowTheSameBitsWhateverIsAroundIt) {
  constexpr int64_t kMost = 40;
  for (const auto& [N, K] : {std::pair<int64_t, int64_t>{50, 33}, {160, 576}, {48, 1024}, {192, 1536}}) {
    const std::vector<TypeParam> a = this->Random(kMost * K), b = this->Random(N * K), packed = Pack(b, N, K);
    std::vector<float> alone(kMost * N), c;
    for (int64_t m = 0; m < kMost; ++m) {
      Multiply(Describe<TypeParam>({a.begin() + m * K, a.begin() + (m + 1) * K}, b, N, K, &c), 0, 1, 0, N);
      std::copy(c.begin(), c.end(), alone.begin() + m * N);
    }
    for (int64_t M = 1; M <= kMost; ++M) {
      const std::vector<TypeParam> rows(a.begin(), a.begin() + M * K);
      const std::vector<float> expected(alone.begin(), alone.begin() + M * N);
      Multiply(Describe(rows, b, N, K, &c), 0, M, 0, N);
      EXPECT_EQ(c, expected) << M << " rows";
      Gemm<TypeParam> gemm = Describe(rows, packed, N, K, &c);
      gemm.b_is_packed = true;
      Multiply(gemm, 0, M, 0, N);
      EXPECT_EQ(c, expected) << M << " rows, packed";
    }
  }
}

template <typename Element>
std::vector<Element> Transposed(const std::vector<Element>& matrix, int64_t rows) {
  const int64_t columns = static_cast<int64_t>(matrix.size()) / rows;
  std::vector<Element> transposed(matrix.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) transposed[j * rows + i] = matrix[i * columns + j];
  }
  return transposed;
}

TYPED_TEST(GemmTest, GivesTheSameBitsOfTransposedFactors) {
  for (const auto& [M, N, K] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 50, 33}, {31, 160, 64}, {40, 17, 97}, {33, 100, 600}}) {
    const std::vector<TypeParam> a = this->Random(M * K), b = this->Random(N * K);
    const std::vector<TypeParam> a_transposed = Transposed(a, M), b_transposed = Transposed(b, N);
    std::vector<float> expected, c;
    Multiply(Describe(a, b, N, K, &expected), 0, M, 0, N);
    for (const bool of_a : {false, true}) {
      for (const bool of_b : {false, true}) {
        Gemm<TypeParam> gemm = Describe(of_a ? a_transposed : a, of_b ? b_transposed : b, N, K, &c);
        if (of_a) gemm.a_stride = M;
        if (of_b) gemm.b_stride = N;
        gemm.a_is_transposed = of_a;
        gemm.b_is_transposed = of_b;
        Multiply(gemm, 0, M / 2, 0, N);
        Multiply(gemm, M / 2, M, 0, N);
        EXPECT_EQ(c, expected) << M << " x " << N << " x " << K << (of_a ? ", A" : "") << (of_b ? ", B" : "");
      }
    }
  }
}

// As a few rows by a packed B, whose inputs are taken in one go.
TYPED_TEST(GemmTest, GivesTheSameBitsOfManyInputsInParts) {
  struct Shape {
    int64_t M, N, K;
  };
  std::vector<Shape> shapes = {{40, 340, 2100}, {40, 35, 10500}};
  if (CpuKernels() != EmulatedAmxTiles().name) shapes.push_back({8200, 16, 2100});
  for (const auto& [M, N, K] : shapes) {
    SCOPED_TRACE(absl::StrCat(M, " x ", K, " x ", N));
    const auto a = this->Random(M * K), b = this->Random(N * K), bias = this->Random(N), residual = this->Random(M * N);
    for (const bool in_fp32 : {false, true}) {
      const auto multiply = [&](const std::vector<TypeParam>& of, bool is_packed, bool is_transposed, int64_t rows) {
        std::vector<float> sums;
        std::vector<TypeParam> rounded(M * N);
        Gemm<TypeParam> gemm = Describe(a, of, N, K, &sums);
        gemm.b_is_packed = is_packed;
        gemm.b_is_transposed = is_transposed;
        if (is_transposed) gemm.b_stride = N;
        gemm.bias = bias.data();
        if (!in_fp32) {
          gemm.c = rounded.data();
          gemm.c_fp32 = nullptr;
          gemm.residual = residual.data();
        }
        for (int64_t m = 1; m < M; m += rows) Multiply(gemm, m, std::min(M, m + rows), 0, N);
        return std::pair(sums, rounded);
      };
      const auto packed = Pack(b, N, K);
      const auto expected = multiply(packed, true, false, 8);
      EXPECT_EQ(multiply(packed, true, false, M), expected);
      EXPECT_EQ(multiply(b, false, false, M), expected);
      EXPECT_EQ(multiply(Transposed(b, N), false, true, M), expected);
    }
  }
}

TYPED_TEST(GemmTest, CanBeCutBetweenThreads) {
  constexpr int64_t M = 29, N = 100, K = 65;
  const std::vector<TypeParam> a = this->Random(M * K), b = this->Random(N * K);
  std::vector<float> whole, parts;
  Multiply(Describe(a, b, N, K, &whole), 0, M, 0, N);
  const Gemm<TypeParam> gemm = Describe(a, b, N, K, &parts);
  std::thread others([&] {
    Multiply(gemm, 0, 10, 48, N);
    Multiply(gemm, 10, M, 0, 16);
  });
  Multiply(gemm, 0, 10, 0, 48);
  Multiply(gemm, 10, M, 16, N);
  others.join();
  EXPECT_EQ(parts, whole);
}

TYPED_TEST(GemmTest, AddsTheBiasBeforeTheOneRounding) {
  constexpr int64_t M = 9, N = 50, K = 64;
  const std::vector<TypeParam> a = this->Random(M * K), b = this->Random(N * K), bias = this->Random(N);
  std::vector<float> sums, unused;
  Multiply(Describe(a, b, N, K, &sums), 0, M, 0, N);
  constexpr int64_t kStride = N + 7;  // what is between the rows stays
  const auto untouched = Rounded(1234, TypeParam{});
  std::vector<TypeParam> c(M * kStride, untouched);
  Gemm<TypeParam> gemm = Describe(a, b, N, K, &unused);
  gemm.c_fp32 = nullptr;
  gemm.c = c.data();
  gemm.c_stride = kStride;
  for (const bool with_bias : {false, true}) {
    gemm.bias = with_bias ? bias.data() : nullptr;
    Multiply(gemm, 0, M, 0, N);
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < kStride; ++n) {
        const TypeParam expected =
            n < N ? Rounded(sums[m * N + n] + (with_bias ? Wide(bias[n]) : 0.0f), TypeParam{}) : untouched;
        ASSERT_EQ(c[m * kStride + n], expected) << m << ", " << n;
      }
    }
  }
}

TYPED_TEST(GemmTest, GoesOnFromWhatCHolds) {
  constexpr int64_t M = 29, N = 50, K = 700, kFirst = 320;
  const auto a = this->Random(M * K), b = this->Random(N * K);
  std::vector<float> whole, parts;
  Multiply(Describe(a, b, N, K, &whole), 0, M, 0, N);
  Gemm<TypeParam> gemm = Describe(a, b, N, K, &parts);
  gemm.K = kFirst;
  Multiply(gemm, 0, M, 0, N);
  gemm.K = K - kFirst;
  gemm.a += kFirst;
  gemm.b += kFirst;
  gemm.first_sums = parts.data();
  gemm.first_stride = N;
  Multiply(gemm, 0, M, 0, N);
  EXPECT_EQ(parts, whole);
}

TYPED_TEST(GemmTest, KeepsWhatIsNoNumberInItsRowAndColumn) {
  constexpr int64_t M = 3, N = 20, K = 5;
  std::vector<TypeParam> a = this->Random(M * K), b = this->Random(N * K);
  a[1 * K + 4] = Rounded(std::numeric_limits<float>::infinity(), TypeParam{});  // at an odd end
  b[18 * K + 2] = Rounded(std::numeric_limits<float>::quiet_NaN(), TypeParam{});
  std::vector<float> c;
  Multiply(Describe(a, b, N, K, &c), 0, M, 0, N);
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      if (n == 18) {
        EXPECT_TRUE(std::isnan(c[m * N + n])) << m;
      } else {
        EXPECT_EQ(std::isinf(c[m * N + n]), m == 1) << m << ", " << n;
      }
    }
  }
}

// So that what the emulation shows on any CPU holds of the instructions.
TEST(AmxGemm, IsEmulatedBitForBit) {
  const GemmTiles<uint16_t>* const amx = AmxTiles();
  if (amx == nullptr) GTEST_SKIP() << "the CPU has no AMX";
  const GemmTiles<uint16_t>& emulated = EmulatedAmxTiles();
  std::mt19937 engine(5);
  std::uniform_int_distribution<uint32_t> bits(0, 0xFFFF);
  for (const int64_t K : {2, 31, 32, 97, 160}) {
    for (int64_t rows = 1; rows <= amx->most_rows; ++rows) {
      const int64_t panels = amx->panels_for_rows[rows], N = panels * kPanelRows - 3;
      std::vector<uint16_t> a(rows * K), b(panels * PanelNumel<uint16_t>(K));
      // Numbers of any size, denormal ones among them.
      for (uint16_t& value : a) value = static_cast<uint16_t>(bits(engine) & 0xBFFF);
      for (uint16_t& value : b) value = static_cast<uint16_t>(bits(engine) & 0xBFFF);
      std::vector<float> expected, c;
      Gemm<uint16_t> gemm = Describe(a, b, N, K, &expected);
      gemm.b_is_packed = true;
      emulated.multiply(gemm, 0, rows, a.data(), K, b.data(), panels, 0, {b.data(), 0});
      emulated.release();
      gemm = Describe(a, b, N, K, &c);
      gemm.b_is_packed = true;
      amx->multiply(gemm, 0, rows, a.data(), K, b.data(), panels, 0, {b.data(), 0});
      amx->release();
      ASSERT_EQ(c, expected) << rows << " x " << N << " x " << K;
    }
  }
}

TYPED_TEST(GemmTest, TakesNoRows) {
  const std::vector<TypeParam> b = this->Random(32);
  std::vector<float> c;
  Multiply(Describe<TypeParam>({}, b, 4, 8, &c), 0, 0, 0, 4);
}

}  // namespace
}  // namespace quartet
