#include "core/model/strided_range.h"

#include <gtest/gtest.h>

#include <vector>

namespace quartet {
namespace {

std::vector<int64_t> ElementsOf(const StridedRange& range) {
  std::vector<int64_t> elements;
  for (int64_t row = 0; row < range.rows; ++row) {
    for (int64_t i = 0; i < range.count; ++i) elements.push_back(range.begin + row * range.stride + i);
  }
  return elements;
}

const StridedRange kRanges[] = {{.begin = 7, .count = 11},
                                {.begin = 0, .count = 1},
                                {.begin = 2, .count = 3, .rows = 5, .stride = 8},
                                {.begin = 0, .count = 4, .rows = 3, .stride = 4},
                                {.begin = 5, .count = 1, .rows = 6, .stride = 2}};

TEST(StridedRange, CountsTheElementsBeforeAPosition) {
  for (const StridedRange& range : kRanges) {
    const std::vector<int64_t> elements = ElementsOf(range);
    EXPECT_EQ(range.numel(), static_cast<int64_t>(elements.size()));
    for (int64_t position = 0; position < 50; ++position) {
      int64_t before = 0;
      for (const int64_t element : elements) before += element < position ? 1 : 0;
      EXPECT_EQ(ElementsBefore(range, position), before) << "begin " << range.begin << ", position " << position;
    }
  }
}

TEST(StridedRange, IsItsPartsOneBehindTheOther) {
  for (const StridedRange& range : kRanges) {
    for (int64_t first = 0; first < range.numel(); ++first) {
      for (int64_t most = 1; most <= range.numel() + 1; ++most) {
        std::vector<int64_t> elements = ElementsOf(range);
        elements.erase(elements.begin(), elements.begin() + first);
        std::vector<int64_t> parts;
        for (int64_t done = first; done < range.numel();) {
          const StridedRange part = NextPart(range, done, most);
          ASSERT_GE(part.numel(), 1);
          ASSERT_LE(part.numel(), most);
          for (const int64_t element : ElementsOf(part)) parts.push_back(element);
          done += part.numel();
        }
        EXPECT_EQ(parts, elements) << "begin " << range.begin << ", from " << first << " by " << most;
      }
    }
  }
}

TEST(StridedRange, TakesWholeRowsTogether) {
  const StridedRange range = {.begin = 2, .count = 3, .rows = 5, .stride = 8};
  EXPECT_EQ(NextPart(range, 0, 100), range);
  EXPECT_EQ(NextPart(range, 0, 7), (StridedRange{.begin = 2, .count = 3, .rows = 2, .stride = 8}));
  EXPECT_EQ(NextPart(range, 4, 100), (StridedRange{.begin = 11, .count = 2}));
  EXPECT_EQ(NextPart(range, 12, 100), (StridedRange{.begin = 34, .count = 3}));
}

}  // namespace
}  // namespace quartet
