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
  int64_t block_size, kv_heads, group, head_dim;
  bool cuts;
  std::vector<Chunk> chunks;
};

class PagedItems : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, PagedItems,
    ::testing::Values(
        Case{16, 3, 3, 64, false, {{0, 37}, {0, 16}, {36, 1}, {100, 1}}},   // prompts beside tokens that decode
        Case{16, 2, 7, 128, false, {{50, 30}, {0, 1}, {63, 2}, {64, 64}}},  // chunks in the middle, edges of tiles
        Case{32, 1, 1, 80, false, {{5, 70}, {200, 17}, {0, 16}}},           // a head that fills no whole sixteens
        Case{16, 2, 4, 256, false, {{10, 20}, {77, 1}}},                    // the widest head
        Case{16, 1, 16, 24, false, {{3, 9}, {0, 1}}},                       // as many heads as share one
        Case{16, 2, 3, 64, true, {{2000, 1}, {766, 1}, {767, 5}, {9, 1}, {300, 40}}},  // keys in parts
        Case{16, 1, 5, 16, true, {{1700, 3}, {20000, 1}, {600, 1}}}),
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

  const PagedPlan plan = PlanPagedAttention(S, chunks, H, K);
  EXPECT_EQ(c.cuts, !plan.merges.empty());
  std::vector<uint16_t> out(T * H * d, 0x7fc0);
  std::vector<float> part_sums(plan.parts * H * d), part_scores(plan.parts * H * 2);
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
    if (plan.items[i].part >= 0) {
      EXPECT_EQ(plan.items[i].tokens, 1) << "the room for parts is that of one token";
    }
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

// Items of the token at `position`, decoded beside others at `beside`.
std::vector<AttentionItem> ItemsOf(int32_t position, const std::vector<int64_t>& beside) {
  static const std::vector<int32_t> blocks(200000 / 16, 0);
  std::vector<AttentionChunk> chunks = {{blocks.data(), position, 1}};
  for (const int64_t other : beside) chunks.push_back({blocks.data(), other, 1});
  std::vector<AttentionItem> items = PlanPagedAttention(16, chunks, 32, 8).items;
  std::erase_if(items, [](const AttentionItem& item) { return item.row != 0; });
  return items;
}

TEST(PagedPlan, CutsTheKeysOfASequenceWhateverIsBesideIt) {
  for (const int32_t position : {0, 511, 766, 767, 5000, 16383, 131071}) {
    const std::vector<AttentionItem> alone = ItemsOf(position, {});
    const std::vector<AttentionItem> beside = ItemsOf(position, std::vector<int64_t>(255, 9000));
    ASSERT_EQ(alone.size(), beside.size());
    int32_t seen = 0;
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(alone[i].begin, seen);
      EXPECT_EQ(beside[i].begin, alone[i].begin);
      EXPECT_EQ(beside[i].end, alone[i].end);
      seen = alone[i].end;
    }
    EXPECT_EQ(seen, position + 1);
  }
}

TEST(PagedPlan, LetsNoBlockLoopOverALongSequence) {
  const auto longest_part = [](int32_t position) {
    int32_t most = 0;
    for (const AttentionItem& item : ItemsOf(position, std::vector<int64_t>(63, 500))) {
      most = std::max(most, item.end - item.begin);
    }
    return most;
  };
  EXPECT_LE(longest_part(16383), 512);
  EXPECT_LE(longest_part(8000), 576);
  EXPECT_LE(longest_part(700), 701);
  EXPECT_LE(longest_part(131071), 4096);
}

// Of any lengths up to the longest: what is reserved has room for all that have not more items.
TEST(PagedPlan, OfTokensThatDecodeIsAtMostAsLargeAsFilledUp) {
  std::vector<int32_t> blocks(20000 / 16, 0);
  std::mt19937 random(5);
  int without_room = 0;
  for (const int64_t kv_heads : {1, 2, 8}) {
    for (const int64_t count : {1, 2, 3, 8, 40, 300}) {
      for (const int64_t longest : {100, 767, 768, 2000, 20000}) {
        const DecodePlanSize most = ReservedDecodePlan(16, count, kv_heads, longest);
        EXPECT_GE(most.items, count);
        bool cut = false;
        for (int i = 0; i < 30; ++i) {
          std::vector<AttentionChunk> chunks;
          int64_t items = 0;
          for (int64_t c = 0; c < count; ++c) {
            chunks.push_back({blocks.data(), i == 0 ? longest - 1 : static_cast<int64_t>(random() % longest), 1});
            items += PartsOf(chunks.back().first + 1);
          }
          PagedPlan plan = PlanPagedAttention(16, chunks, 4 * kv_heads, kv_heads);
          ASSERT_LE(plan.items.size(), items);
          cut = cut || !plan.merges.empty();
          if (items > most.items) {
            ++without_room;
            EXPECT_GT(items * kv_heads, 4096) << "there is less to compute";
            continue;
          }
          ASSERT_LE(plan.merges.size(), most.merges);
          ASSERT_LE(plan.parts, most.parts);
          ASSERT_LE(plan.tables.size(), most.tables);
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
  EXPECT_GT(without_room, 0);
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
