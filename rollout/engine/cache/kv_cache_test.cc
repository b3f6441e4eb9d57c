// The attention that devices use, run on the CPU, against the CPU's own kernel.

#include "rollout/engine/cache/kv_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quartet {
namespace {

constexpr int64_t kBlocks = 200;
constexpr int64_t kLayers = 2;

struct Case {
  int64_t block_size, kv_heads, group, head_dim;
  at::ScalarType dtype;
};

// Both formats behind each other's back: every step goes to both.
class Both {
 public:
  explicit Both(const Case& c) : case_(c) {
    at::manual_seed(c.head_dim);
    KvCacheShape shape{.layout = {c.block_size, c.kv_heads, c.head_dim}, .layers = kLayers, .dtype = c.dtype};
    vectors_ = std::make_unique<KvCache>(shape, kBlocks, at::kCPU, &ledger_);
    shape.format = CacheFormat::kSlots;
    slots_ = std::make_unique<KvCache>(shape, kBlocks, at::kCPU, &ledger_);
    for (int32_t block = 0; block < kBlocks; ++block) free_.push_back(block);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(7));
  }

  Sequence* NewSequence() { return sequences_.emplace_back(std::make_unique<Sequence>()).get(); }

  void Copy(const BlockCopy& copy) {
    vectors_->Copy(copy);
    slots_->Copy(copy);
  }

  int32_t TakeBlock() {
    const int32_t block = free_.back();
    free_.pop_back();
    return block;
  }

  // The next `counts` tokens of each sequence, and `padding` rows.
  void Step(const std::vector<std::pair<Sequence*, int64_t>>& counts, int64_t padding = 0) {
    std::vector<ScheduledChunk> chunks;
    int64_t T = padding;
    for (const auto& [sequence, count] : counts) {
      chunks.push_back({sequence, sequence->computed, count, true});
      sequence->computed += count;
      while (static_cast<int64_t>(sequence->blocks.size()) * case_.block_size < sequence->computed) {
        sequence->blocks.push_back(TakeBlock());
      }
      T += count;
    }
    const int64_t H = case_.kv_heads * case_.group;
    PagedAttention expected(vectors_.get(), chunks, H), found(slots_.get(), chunks, H);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const at::Tensor q = (at::randn({T, H, case_.head_dim}) * 2).to(case_.dtype);
      const at::Tensor k = (at::randn({T, case_.kv_heads, case_.head_dim}) * 2).to(case_.dtype);
      const at::Tensor v = at::randn({T, case_.kv_heads, case_.head_dim}).to(case_.dtype);
      expected.set_layer(layer);
      found.set_layer(layer);
      const at::Tensor a = expected.Attend(q, k, v).to(at::kDouble), b = found.Attend(q, k, v).to(at::kDouble);
      const double tolerance = case_.dtype == at::kFloat ? 1e-5 : 8e-3;
      EXPECT_LE((a - b).abs().max().item<double>(), tolerance * std::max(1.0, a.abs().max().item<double>()))
          << "layer " << layer << ", block size " << case_.block_size << ", group " << case_.group;
      EXPECT_EQ(b.slice(0, T - padding).abs().sum().item<double>(), 0);
    }
  }

 private:
  const Case case_;
  Ledger ledger_;
  std::unique_ptr<KvCache> vectors_, slots_;
  std::vector<int32_t> free_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

class Slots : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Slots,
                         ::testing::Values(Case{16, 3, 3, 64, at::kFloat}, Case{16, 2, 1, 8, at::kFloat},
                                           Case{32, 1, 7, 80, at::kFloat}, Case{16, 2, 4, 128, at::kBFloat16},
                                           Case{16, 1, 17, 64, at::kBFloat16}),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST_P(Slots, GiveWhatTheCpusKernelGives) {
  Both both(GetParam());
  Sequence* const a = both.NewSequence();
  Sequence* const b = both.NewSequence();
  Sequence* const c = both.NewSequence();
  both.Step({{a, 37}, {b, 16}}, 3);         // prompts, one of whole blocks
  both.Step({{a, 50}, {b, 1}, {c, 1}});     // a chunk in the middle beside tokens that decode
  both.Step({{c, 1}, {b, 1}, {a, 1}}, 1);   // in another order, of very different lengths
  both.Step({{b, 30}, {a, 1}, {c, 2}}, 7);  // from the middle of a block over its end
  both.Step({{a, 300}, {b, 200}, {c, 1}}, 40);
  for (int i = 0; i < 3; ++i) both.Step({{a, 1}, {b, 1}, {c, 1}});
}

TEST_P(Slots, AreCopiedInAllLayers) {
  Both both(GetParam());
  Sequence* const a = both.NewSequence();
  both.Step({{a, 21}});
  Sequence* const fork = both.NewSequence();
  fork->computed = a->computed;
  fork->blocks = a->blocks;
  fork->blocks.back() = both.TakeBlock();
  both.Copy({a->blocks.back(), fork->blocks.back()});
  both.Step({{a, 1}, {fork, 1}});
  both.Step({{fork, 1}, {a, 1}});
}

// More tokens than one tile has room for.
TEST(SlotsOfOneHead, AreTakenInTiles) {
  Both both({16, 1, 16, 8, at::kFloat});
  std::vector<std::pair<Sequence*, int64_t>> prompts, tokens;
  for (int i = 0; i < 12; ++i) {
    prompts.push_back({both.NewSequence(), i == 0 ? 1700 : 40});
    tokens.push_back({prompts.back().first, 1});
  }
  both.Step(prompts);
  both.Step(tokens);
}

TEST(SlotsOfAPlan, AreCountedAsOnTheDevice) {
  Ledger plan;
  const KvCacheShape shape{.layout = {16, 2, 64}, .layers = 3, .dtype = at::kBFloat16, .format = CacheFormat::kSlots};
  const KvCache cache(shape, 5, at::kMeta, &plan);
  EXPECT_EQ(plan.current(MemoryCategory::kKvCache), 5 * 3 * 2 * 16 * 2 * 64 * 2);
}

}  // namespace
}  // namespace quartet
