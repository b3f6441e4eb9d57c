// Against sums of the same products in double precision, which are exact but for the last places.
#include "core/kernels/cpu/bf16_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/hardware/bf16.h"

namespace quartet {
namespace {

class Bf16GemmTest : public testing::Test {
 protected:
  std::vector<uint16_t> Random(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) value = ToBf16(normal(engine_));
    return values;
  }

 private:
  std::mt19937 engine_{7};
};

std::vector<uint16_t> Pack(const std::vector<uint16_t>& b, int64_t N, int64_t K) {
  const int64_t panels = (N + kPanelRows - 1) / kPanelRows;
  std::vector<uint16_t> packed(panels * PanelNumel(K), 0xFFFF);
  for (int64_t p = 0; p < panels; ++p) {
    PackPanel(b.data() + p * kPanelRows * K, std::min(kPanelRows, N - p * kPanelRows), K, K,
              packed.data() + p * PanelNumel(K));
  }
  return packed;
}

// C in fp32; B as it is.
Bf16Gemm Describe(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b, int64_t N, int64_t K,
                  std::vector<float>* c) {
  Bf16Gemm gemm;
  gemm.M = static_cast<int64_t>(a.size()) / K;
  gemm.N = N;
  gemm.K = K;
  gemm.a = a.data();
  gemm.a_stride = K;
  gemm.b = b.data();
  gemm.b_stride = K;
  c->assign(gemm.M * N, -1);
  gemm.c_fp32 = c->data();
  gemm.c_stride = N;
  return gemm;
}

constexpr int64_t kDepths[] = {1, 2, 3, 31, 32, 33, 64, 97, 576};
constexpr int64_t kWidths[] = {1, 15, 16, 17, 50, 160};

TEST_F(Bf16GemmTest, SumsWithinTheErrorOfOneSumAfterTheOther) {
  for (const int64_t K : kDepths) {
    for (const int64_t N : kWidths) {
      for (const int64_t M : {1, 5, 14, 31}) {
        const std::vector<uint16_t> a = Random(M * K), b = Random(N * K);
        std::vector<float> c;
        MultiplyBf16(Describe(a, b, N, K, &c), 0, M, 0, N);
        for (int64_t m = 0; m < M; ++m) {
          for (int64_t n = 0; n < N; ++n) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < K; ++k) {
              const double product = static_cast<double>(FromBf16(a[m * K + k])) * FromBf16(b[n * K + k]);
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
TEST_F(Bf16GemmTest, ByFloatsEachProductIsAddedWithOneRounding) {
#if defined(__x86_64__)
  if (CpuKernels() != "fp32") GTEST_SKIP() << "products here are of bf16";
  if (!__builtin_cpu_supports("avx512f")) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitized, loops are compiled for any CPU";
#endif
    if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "the CPU rounds products, too";
  }
  for (const int64_t K : kDepths) {
    for (const int64_t M : {1, 5, 14, 31}) {
      constexpr int64_t kN = 50;
      const std::vector<uint16_t> a = Random(M * K), b = Random(kN * K);
      std::vector<float> c;
      MultiplyBf16(Describe(a, b, kN, K, &c), 0, M, 0, kN);
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t n = 0; n < kN; ++n) {
          float sum = 0;
          for (int64_t k = 0; k < K; ++k) sum = std::fma(FromBf16(a[m * K + k]), FromBf16(b[n * K + k]), sum);
          ASSERT_EQ(c[m * kN + n], sum) << M << " x " << kN << " x " << K << ", element " << m << ", " << n;
        }
      }
    }
  }
#else
  GTEST_SKIP() << "what is here is x86-64's";
#endif
}

TEST_F(Bf16GemmTest, GivesARowTheSameBitsWhateverIsAroundIt) {
  constexpr int64_t kMost = 40;
  for (const auto& [N, K] : {std::pair<int64_t, int64_t>{50, 33}, {160, 576}, {48, 1024}, {192, 1536}}) {
    const std::vector<uint16_t> a = Random(kMost * K), b = Random(N * K), packed = Pack(b, N, K);
    std::vector<float> alone(kMost * N), c;
    for (int64_t m = 0; m < kMost; ++m) {
      MultiplyBf16(Describe({a.begin() + m * K, a.begin() + (m + 1) * K}, b, N, K, &c), 0, 1, 0, N);
      std::copy(c.begin(), c.end(), alone.begin() + m * N);
    }
    for (int64_t M = 1; M <= kMost; ++M) {
      const std::vector<uint16_t> rows(a.begin(), a.begin() + M * K);
      const std::vector<float> expected(alone.begin(), alone.begin() + M * N);
      MultiplyBf16(Describe(rows, b, N, K, &c), 0, M, 0, N);
      EXPECT_EQ(c, expected) << M << " rows";
      Bf16Gemm gemm = Describe(rows, packed, N, K, &c);
      gemm.b_is_packed = true;
      MultiplyBf16(gemm, 0, M, 0, N);
      EXPECT_EQ(c, expected) << M << " rows, packed";
    }
  }
}

std::vector<uint16_t> Transposed(const std::vector<uint16_t>& matrix, int64_t rows) {
  const int64_t columns = static_cast<int64_t>(matrix.size()) / rows;
  std::vector<uint16_t> transposed(matrix.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) transposed[j * rows + i] = matrix[i * columns + j];
  }
  return transposed;
}

TEST_F(Bf16GemmTest, GivesTheSameBitsOfTransposedFactors) {
  for (const auto& [M, N, K] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 50, 33}, {31, 160, 64}, {40, 17, 97}}) {
    const std::vector<uint16_t> a = Random(M * K), b = Random(N * K);
    const std::vector<uint16_t> a_transposed = Transposed(a, M), b_transposed = Transposed(b, N);
    std::vector<float> expected, c;
    MultiplyBf16(Describe(a, b, N, K, &expected), 0, M, 0, N);
    for (const bool of_a : {false, true}) {
      for (const bool of_b : {false, true}) {
        Bf16Gemm gemm = Describe(of_a ? a_transposed : a, of_b ? b_transposed : b, N, K, &c);
        if (of_a) gemm.a_stride = M;
        if (of_b) gemm.b_stride = N;
        gemm.a_is_transposed = of_a;
        gemm.b_is_transposed = of_b;
        MultiplyBf16(gemm, 0, M / 2, 0, N);
        MultiplyBf16(gemm, M / 2, M, 0, N);
        EXPECT_EQ(c, expected) << M << " x " << N << " x " << K << (of_a ? ", A" : "") << (of_b ? ", B" : "");
      }
    }
  }
}

TEST_F(Bf16GemmTest, CanBeCutBetweenThreads) {
  constexpr int64_t M = 29, N = 100, K = 65;
  const std::vector<uint16_t> a = Random(M * K), b = Random(N * K);
  std::vector<float> whole, parts;
  MultiplyBf16(Describe(a, b, N, K, &whole), 0, M, 0, N);
  const Bf16Gemm gemm = Describe(a, b, N, K, &parts);
  std::thread others([&] {
    MultiplyBf16(gemm, 0, 10, 48, N);
    MultiplyBf16(gemm, 10, M, 0, 16);
  });
  MultiplyBf16(gemm, 0, 10, 0, 48);
  MultiplyBf16(gemm, 10, M, 16, N);
  others.join();
  EXPECT_EQ(parts, whole);
}

TEST_F(Bf16GemmTest, AddsTheBiasBeforeTheOneRounding) {
  constexpr int64_t M = 9, N = 50, K = 64;
  const std::vector<uint16_t> a = Random(M * K), b = Random(N * K), bias = Random(N);
  std::vector<float> sums, unused;
  MultiplyBf16(Describe(a, b, N, K, &sums), 0, M, 0, N);
  constexpr int64_t kStride = N + 7;  // what is between the rows stays
  std::vector<uint16_t> c(M * kStride, 0x1234);
  Bf16Gemm gemm = Describe(a, b, N, K, &unused);
  gemm.c_fp32 = nullptr;
  gemm.c_bf16 = c.data();
  gemm.c_stride = kStride;
  for (const bool with_bias : {false, true}) {
    gemm.bias = with_bias ? bias.data() : nullptr;
    MultiplyBf16(gemm, 0, M, 0, N);
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < kStride; ++n) {
        const uint16_t expected =
            n < N ? ToBf16(sums[m * N + n] + (with_bias ? FromBf16(bias[n]) : 0.0f)) : uint16_t{0x1234};
        ASSERT_EQ(c[m * kStride + n], expected) << m << ", " << n;
      }
    }
  }
}

TEST_F(Bf16GemmTest, KeepsWhatIsNoNumberInItsRowAndColumn) {
  constexpr int64_t M = 3, N = 20, K = 5;
  std::vector<uint16_t> a = Random(M * K), b = Random(N * K);
  a[1 * K + 4] = 0x7F80;  // infinity, at an odd end
  b[18 * K + 2] = 0x7FC0;
  std::vector<float> c;
  MultiplyBf16(Describe(a, b, N, K, &c), 0, M, 0, N);
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

TEST_F(Bf16GemmTest, TakesNoRows) {
  const std::vector<uint16_t> b = Random(32);
  std::vector<float> c;
  MultiplyBf16(Describe({}, b, 4, 8, &c), 0, 0, 0, 4);
}

}  // namespace
}  // namespace quartet
