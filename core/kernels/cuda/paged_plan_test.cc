// The items of a forward, computed one by one on the CPU, against softmax in double and the CPU's own kernel.

#include "core/kernels/cuda/paged_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/kernels/cuda/testing/paged_on_cpu.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

struct Chunk {
  int64_t first, count;
};

struct Case {
  int64_t block_size, kv_heads, group, head_dim, wanted;
  std::vector<Chunk> chunks;
};

class PagedItems : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, PagedItems,
    ::testing::Values(
        Case{16, 3, 3, 64, 1, {{0, 37}, {0, 16}, {36, 1}, {100, 1}}},   // prompts beside tokens that decode
        Case{16, 2, 7, 128, 1, {{50, 30}, {0, 1}, {63, 2}, {64, 64}}},  // chunks in the middle, edges of tiles
        Case{32, 1, 1, 80, 1, {{5, 70}, {200, 17}, {0, 16}}},           // a head that fills no whole sixteens
        Case{16, 2, 4, 256, 1, {{10, 20}, {77, 1}}},                    // the widest head
        Case{16, 1, 16, 24, 1, {{3, 9}, {0, 1}}},                       // as many heads as share one
        Case{16, 2, 3, 64, 1000, {{2000, 1}, {511, 1}, {512, 5}, {9, 1}, {300, 40}}},  // keys in parts
        Case{16, 1, 5, 16, 7, {{1700, 3}, {600, 1}}}),
    [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST_P(PagedItems, GiveTheAttentionOfTheirSequences) {
  const Case& c = GetParam();
  const int64_t K = c.kv_heads, G = c.group, H = K * G, d = c.head_dim, S = c.block_size;
  ASSERT_TRUE(TilesFit(d, G));
  std::mt19937 random(static_cast<uint32_t>(d + S));
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t numel) {
    std::vector<uint16_t> drawn(numel);
    for (uint16_t& element : drawn) element = Bf16OfFloat(normal(random));
    return drawn;
  };
  int64_t T = 0, blocks = 0;
  for (const Chunk& chunk : c.chunks) {
    T += chunk.count;
    blocks += (chunk.first + chunk.count + S - 1) / S;
  }
  std::vector<int32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<AttentionChunk> chunks;
  for (int64_t used = 0; const Chunk& chunk : c.chunks) {
    chunks.push_back({order.data() + used, chunk.first, chunk.count});
    used += (chunk.first + chunk.count + S - 1) / S;
  }
  const std::vector<uint16_t> q = draw(T * H * d);
  std::vector<uint16_t> keys = draw(blocks * S * K * d), values = draw(blocks * S * K * d);
  // What no token of the forward may see.
  for (const AttentionChunk& chunk : chunks) {
    for (int64_t position = chunk.first + chunk.count; position % S != 0; ++position) {
      const int64_t slot = chunk.blocks[position / S] * S + position % S;
      std::fill_n(keys.begin() + slot * K * d, K * d, uint16_t{0x7fc0});
      std::fill_n(values.begin() + slot * K * d, K * d, uint16_t{0x7fc0});
    }
  }

  const PagedPlan plan = PlanPagedAttention(S, chunks, H, K, c.wanted);
  EXPECT_EQ(c.wanted > 1, !plan.merges.empty());
  std::vector<uint16_t> out(T * H * d, 0x7fc0);
  std::vector<float> part_sums(plan.parts * K * kNarrowRows * d), part_scores(plan.parts * K * kNarrowRows * 2);
  PagedKernelArgs args = {};
  args.q = q.data();
  args.q_stride = H * d;
  args.out = out.data();
  args.keys = keys.data();
  args.values = values.data();
  args.tables = plan.tables.data();
  args.part_sums = part_sums.data();
  args.part_scores = part_scores.data();
  args.heads = static_cast<int32_t>(H);
  args.kv_heads = static_cast<int32_t>(K);
  args.head_dim = static_cast<int32_t>(d);
  args.block_size = static_cast<int32_t>(S);
  args.items = plan.items.data();
  args.num_items = static_cast<int32_t>(plan.items.size());
  args.num_narrow = plan.num_narrow;
  args.narrow_rows = plan.narrow_rows;
  args.merges = plan.merges.data();
  args.num_merges = static_cast<int32_t>(plan.merges.size());
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const int64_t rows = plan.items[i].tokens * G;
    EXPECT_LE(rows, static_cast<int>(i) < plan.num_narrow ? plan.narrow_rows : kWideRows);
  }
  EXPECT_LE(plan.narrow_rows, kNarrowRows);
  ComputePagedItems(args);

  int64_t row = 0;
  for (const AttentionChunk& chunk : chunks) {
    for (int64_t t = 0; t < chunk.count; ++t, ++row) {
      for (int64_t h = 0; h < H; ++h) {
        const int64_t seen = chunk.first + t + 1;
        const auto slot = [&](int64_t position) { return int64_t{chunk.blocks[position / S]} * S + position % S; };
        std::vector<double> scores(seen), expected(d);
        double most = -INFINITY, total = 0;
        for (int64_t p = 0; p < seen; ++p) {
          double score = 0;
          for (int64_t i = 0; i < d; ++i) {
            score += double{FloatOfBf16(q[(row * H + h) * d + i])} *
                     double{FloatOfBf16(keys[(slot(p) * K + h / G) * d + i])};
          }
          scores[p] = score / std::sqrt(static_cast<double>(d));
          most = std::max(most, scores[p]);
        }
        for (int64_t p = 0; p < seen; ++p) {
          const double weight = std::exp(scores[p] - most);
          total += weight;
          for (int64_t i = 0; i < d; ++i) {
            expected[i] += weight * double{FloatOfBf16(values[(slot(p) * K + h / G) * d + i])};
          }
        }
        for (int64_t i = 0; i < d; ++i) {
          const double want = expected[i] / total, got = FloatOfBf16(out[(row * H + h) * d + i]);
          ASSERT_NEAR(got, want, 0.008 + 0.004 * std::abs(want))
              << "row " << row << ", head " << h << ", element " << i;
        }
      }
    }
  }
}

TEST(PagedPlan, CutsNothingWhereThereIsEnoughToDo) {
  std::vector<int32_t> blocks(1000, 0);
  const std::vector<AttentionChunk> chunks(40, {blocks.data(), 9000, 1});
  const PagedPlan plan = PlanPagedAttention(16, chunks, 32, 8, 300);
  EXPECT_EQ(plan.items.size(), 40);
  EXPECT_TRUE(plan.merges.empty());
}

// Of any lengths up to the longest: what is recorded for the largest plan has room for all.
TEST(PagedPlan, OfTokensThatDecodeIsAtMostAsLargeAsFilledUp) {
  std::vector<int32_t> blocks(2000 / 16, 0);
  std::mt19937 random(5);
  for (const int64_t kv_heads : {1, 2, 8}) {
    for (const int64_t count : {1, 2, 3, 8, 40, 300}) {
      for (const int64_t longest : {100, 511, 512, 700, 2000}) {
        const DecodePlanSize most = LargestDecodePlan(16, count, kv_heads, longest, kWantedItems);
        bool cut = false;
        for (int i = 0; i < 30; ++i) {
          std::vector<AttentionChunk> chunks;
          for (int64_t c = 0; c < count; ++c) {
            chunks.push_back({blocks.data(), i == 0 ? longest - 1 : static_cast<int64_t>(random() % longest), 1});
          }
          PagedPlan plan = PlanPagedAttention(16, chunks, 4 * kv_heads, kv_heads, kWantedItems);
          ASSERT_LE(plan.items.size(), most.items);
          ASSERT_LE(plan.merges.size(), most.merges);
          ASSERT_LE(plan.parts, most.parts);
          ASSERT_LE(plan.tables.size(), most.tables);
          cut = cut || !plan.merges.empty();
          const PagedPlan before = plan;
          FillUp(most, &plan);
          EXPECT_EQ(plan.items.size(), most.items);
          EXPECT_EQ(plan.num_narrow, most.items);
          EXPECT_EQ(plan.merges.size(), most.merges);
          for (size_t k = before.items.size(); k < plan.items.size(); ++k) EXPECT_EQ(plan.items[k].tokens, 0);
          for (size_t k = before.merges.size(); k < plan.merges.size(); ++k) EXPECT_EQ(plan.merges[k].tokens, 0);
        }
        EXPECT_EQ(cut, most.merges > 0) << count << " of " << longest << ", " << kv_heads << " heads";
      }
    }
  }
}

TEST(PagedPlan, KnowsWhatItCannotCut) {
  EXPECT_TRUE(TilesFit(64, 3));
  EXPECT_TRUE(TilesFit(256, 16));
  EXPECT_FALSE(TilesFit(64, 17));
  EXPECT_FALSE(TilesFit(100, 2));
  EXPECT_FALSE(TilesFit(512, 2));
}

}  // namespace
}  // namespace quartet
