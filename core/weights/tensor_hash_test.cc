#include "core/weights/tensor_hash.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace quartet {
namespace {

std::vector<uint16_t> RandomBf16(int64_t count) {
  std::mt19937_64 random(7);
  std::vector<uint16_t> values(count);
  for (uint16_t& v : values) v = static_cast<uint16_t>(random());
  return values;
}

// The definition in docs/weight_sync.md, written down a second time, element by element.
uint64_t HashByDefinition(const std::vector<uint16_t>& values, uint64_t first) {
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t x = (first + i) * 11400714819323198485u + values[i];
    x ^= x >> 30;
    x *= 13787848793156543929u;
    x ^= x >> 27;
    x *= 10723151780598845931u;
    x ^= x >> 31;
    sum += x;
  }
  return sum;
}

TEST(TensorHash, EqualsItsDefinition) {
  const std::vector<uint16_t> values = RandomBf16(1003);
  EXPECT_EQ(HashElements(values.data(), Dtype::kBF16, 5, 1003), HashByDefinition(values, 5));
  EXPECT_EQ(HashElements(values.data(), Dtype::kBF16, int64_t{1} << 40, 1003), HashByDefinition(values, 1ull << 40));
}

TEST(TensorHash, OfFourBytesZeroExtendsTheBits) {
  const std::vector<uint16_t> narrow = {0, 1, 0x8000, 0xFFFF};
  const std::vector<uint32_t> wide(narrow.begin(), narrow.end());
  EXPECT_EQ(HashElements(wide.data(), Dtype::kF32, 9, 4), HashByDefinition(narrow, 9));
}

TEST(TensorHash, ComposesOverAnySharding) {
  const std::vector<uint16_t> values = RandomBf16(10000);
  const uint64_t whole = HashElements(values.data(), Dtype::kBF16, 0, 10000);
  std::mt19937 random(3);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<int64_t> cuts = {0, 10000};
    for (int i = 0; i < 7; ++i) cuts.push_back(random() % 10001);
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::pair<int64_t, int64_t>> parts;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) parts.emplace_back(cuts[i], cuts[i + 1]);
    std::shuffle(parts.begin(), parts.end(), random);
    uint64_t sum = 0;
    for (const auto& [begin, end] : parts) {
      sum += HashElements(values.data() + begin, Dtype::kBF16, begin, end - begin);
    }
    ASSERT_EQ(sum, whole);
  }
}

TEST(TensorHash, NeedsNoAlignment) {
  const std::vector<uint16_t> values = RandomBf16(777);
  std::vector<unsigned char> shifted(777 * 2 + 1);
  std::memcpy(shifted.data() + 1, values.data(), 777 * 2);
  EXPECT_EQ(HashElements(shifted.data() + 1, Dtype::kBF16, 3, 777), HashElements(values.data(), Dtype::kBF16, 3, 777));
}

TEST(TensorHash, DetectsEverySingleBitFlip) {
  std::vector<uint16_t> values = RandomBf16(257);
  const uint64_t whole = HashElements(values.data(), Dtype::kBF16, 0, 257);
  for (uint16_t& value : values) {
    for (int bit = 0; bit < 16; ++bit) {
      value ^= static_cast<uint16_t>(1u << bit);
      ASSERT_NE(HashElements(values.data(), Dtype::kBF16, 0, 257), whole);
      value ^= static_cast<uint16_t>(1u << bit);
    }
  }
}

TEST(TensorHash, DetectsTwoElementsThatChangePlaces) {
  std::vector<uint16_t> values = RandomBf16(64);
  const uint64_t whole = HashElements(values.data(), Dtype::kBF16, 0, 64);
  for (int i = 0; i < 64; ++i) {
    for (int j = i + 1; j < 64; ++j) {
      if (values[i] == values[j]) continue;
      std::swap(values[i], values[j]);
      ASSERT_NE(HashElements(values.data(), Dtype::kBF16, 0, 64), whole) << i << " and " << j;
      std::swap(values[i], values[j]);
    }
  }
}

TEST(TensorHash, DetectsATensorOfZerosThatIsTooShort) {
  const std::vector<uint32_t> zeros(100);
  EXPECT_NE(HashElements(zeros.data(), Dtype::kF32, 0, 99), HashElements(zeros.data(), Dtype::kF32, 0, 100));
}

TEST(TensorHash, OfNothingIsZero) { EXPECT_EQ(HashElements(nullptr, Dtype::kF32, 12, 0), 0u); }

}  // namespace
}  // namespace quartet
