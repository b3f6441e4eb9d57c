// Recorded steps on the CPU, where a recording runs what was recorded once more on the tensors of then: what they
// attend to against LibTorch's operators, and where they write.

#include "rollout/engine/graphs/decode_graphs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/hardware/meta_device.h"
#include "core/kernels/torch_paged_attention.h"
#include "gtest/gtest.h"
#include "rollout/engine/graphs/graph_recorder.h"
#include "rollout/engine/testing/run_again_recorder.h"

namespace quartet {
namespace {

constexpr int64_t kTokens = 97, kLayers = 2, kBlocks = 700;

struct Case {
  int64_t kv_heads, group, head_dim, max_num_seqs, longest;
};

// A "model" that is attention alone, in each layer of queries, keys and values that the token and its position give.
class Decoding {
 public:
  explicit Decoding(const Case& c)
      : case_(c),
        cache_({.layout = {16, c.kv_heads, c.head_dim}, .layers = kLayers, .format = CacheFormat::kSlots}, kBlocks + 1,
               at::kCPU, &ledger_) {
    at::manual_seed(c.head_dim);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      queries_.push_back(Random(c.kv_heads * c.group));
      keys_.push_back(Random(c.kv_heads));
      values_.push_back(Random(c.kv_heads));
    }
    for (int32_t block = 0; block < kBlocks; ++block) free_.push_back(block);
    std::shuffle(free_.begin(), free_.end(), random_);
    DecodeGraphOptions options;
    options.heads = c.kv_heads * c.group;
    options.max_model_len = c.longest;
    options.max_num_seqs = c.max_num_seqs;
    const auto forward = [this](const at::Tensor& ids_B, const at::Tensor& positions_B, PagedAttention& attention) {
      std::vector<at::Tensor> layers;
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        attention.set_layer(layer);
        const at::Tensor token_B = (ids_B * 31 + positions_B).remainder(kTokens);
        layers.push_back(attention.Attend(queries_[layer].index_select(0, token_B),
                                          keys_[layer].index_select(0, token_B),
                                          values_[layer].index_select(0, token_B)));
      }
      return at::cat(layers, 1).flatten(1);
    };
    graphs_ = std::make_unique<DecodeGraphs>(std::make_unique<RunAgainRecorder>(&recorded_), &cache_, options, forward,
                                             &ledger_);
  }

  // With `length` tokens, whose keys and values the cache has but for the last one's.
  Sequence* NewSequence(int64_t length) {
    Sequence* const sequence = sequences_.emplace_back(std::make_unique<Sequence>()).get();
    for (int64_t i = 0; i < length; ++i) {
      Append(sequence);
      if (i + 1 == length) break;
      const int64_t token = (sequence->ids[i] * 31 + i) % kTokens;
      const at::Tensor slot = at::arange(SlotOf(*sequence, i), SlotOf(*sequence, i) + 1);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        cache_.key_slots(layer).index_copy_(0, slot, keys_[layer].narrow(0, token, 1));
        cache_.value_slots(layer).index_copy_(0, slot, values_[layer].narrow(0, token, 1));
      }
    }
    return sequence;
  }

  // A token more, and a block, where it needs one.
  void Append(Sequence* sequence) {
    sequence->ids.push_back(static_cast<int32_t>(random_() % kTokens));
    if (sequence->ids.size() <= sequence->blocks.size() * 16) return;
    sequence->blocks.push_back(free_.back());
    free_.pop_back();
  }

  // The last token of each, replayed: they attend to what they should, and nothing but their slots is written to.
  void Step(const std::vector<Sequence*>& sequences) {
    std::vector<ScheduledChunk> chunks;
    std::vector<AttentionChunk> plain;
    for (Sequence* sequence : sequences) {
      chunks.push_back({sequence, static_cast<int64_t>(sequence->ids.size()) - 1, 1, true});
      plain.push_back({sequence->blocks.data(), chunks.back().first, 1});
    }
    ASSERT_TRUE(graphs_->Fit(chunks));
    const at::Tensor before = Slots().clone();
    const at::Tensor found = graphs_->Run(chunks).to(at::kFloat);
    ASSERT_EQ(found.size(0), static_cast<int64_t>(sequences.size()));

    at::Tensor untouched = at::arange(kBlocks * 16) >= 0;
    for (const ScheduledChunk& chunk : chunks) untouched[SlotOf(*chunk.sequence, chunk.first)] = false;
    const at::Tensor changed = (Slots() != before).flatten(2).any(2).any(0).narrow(0, 0, kBlocks * 16);
    EXPECT_FALSE(changed.logical_and(untouched).any().item<bool>()) << "another's slot was written to";

    const TorchPagedAttention expected(16, plain, case_.kv_heads * case_.group, at::kCPU);
    std::vector<int64_t> tokens;
    for (const ScheduledChunk& chunk : chunks) {
      tokens.push_back((chunk.sequence->ids[chunk.first] * 31 + chunk.first) % kTokens);
    }
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      std::vector<at::Tensor> rows;
      for (const int64_t token : tokens) rows.push_back(queries_[layer].narrow(0, token, 1));
      const at::Tensor want =
          expected.Attend(at::cat(rows, 0), cache_.key_slots(layer), cache_.value_slots(layer)).to(at::kFloat);
      const at::Tensor got = found.chunk(kLayers, 1)[layer].reshape(want.sizes());
      const auto largest = want.abs().max().item<float>();
      EXPECT_LE((got - want).abs().max().item<float>(), 0.008 * largest + 0.002) << "layer " << layer;
      EXPECT_GT(largest, 0.1);
    }
  }

  bool Fit(const std::vector<ScheduledChunk>& chunks) const { return graphs_->Fit(chunks); }
  const std::vector<int64_t>& recorded() const { return recorded_; }
  const Ledger& ledger() const { return ledger_; }
  const DecodeGraphs& graphs() const { return *graphs_; }

 private:
  at::Tensor Random(int64_t heads) const { return (at::randn({kTokens, heads, case_.head_dim}) * 2).to(at::kBFloat16); }
  static int64_t SlotOf(const Sequence& sequence, int64_t position) {
    return sequence.blocks[position / 16] * int64_t{16} + position % 16;
  }
  // [layers * 2, slots, K, d]
  at::Tensor Slots() const {
    std::vector<at::Tensor> all;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      all.push_back(cache_.key_slots(layer).unsqueeze(0));
      all.push_back(cache_.value_slots(layer).unsqueeze(0));
    }
    return at::cat(all, 0);
  }

  const Case case_;
  Ledger ledger_;
  KvCache cache_;
  std::mt19937 random_{3};
  std::vector<int32_t> free_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<at::Tensor> queries_, keys_, values_;
  std::vector<int64_t> recorded_;
  std::unique_ptr<DecodeGraphs> graphs_;
};

TEST(GraphBatchSizes, AreCloseWhereBatchesAreSmall) {
  EXPECT_EQ(GraphBatchSizes(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(GraphBatchSizes(3), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(GraphBatchSizes(30), (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 30}));
  const std::vector<int64_t> sizes = GraphBatchSizes(100000);
  EXPECT_EQ(sizes.back(), 512);
  for (size_t i = 1; i < sizes.size(); ++i) EXPECT_LE(sizes[i] - sizes[i - 1], 16);
}

class Replays : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Replays,
                         ::testing::Values(Case{2, 2, 8, 20, 100}, Case{1, 4, 16, 9, 2000},  // keys in parts
                                           Case{3, 3, 64, 12, 700}, Case{2, 7, 80, 3, 511}),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST_P(Replays, AttendToTheirSequencesAndWriteToNobodyElse) {
  const Case& c = GetParam();
  Decoding decoding(c);
  EXPECT_TRUE(std::is_sorted(decoding.recorded().rbegin(), decoding.recorded().rend())) << "largest first";
  EXPECT_EQ(decoding.recorded().front(), c.max_num_seqs);
  std::mt19937 random(11);
  std::vector<Sequence*> all;
  for (int64_t i = 0; i < c.max_num_seqs; ++i) {
    const int64_t length =
        i == 0 ? c.longest - 20 : 1 + static_cast<int64_t>(random() % std::min<int64_t>(c.longest - 20, 600));
    all.push_back(decoding.NewSequence(length));
  }
  decoding.Step(all);
  // Over ends of blocks, of all numbers in any order.
  std::vector<size_t> counts;
  for (size_t n = 1; n <= all.size(); ++n) counts.push_back(n);
  std::shuffle(counts.begin(), counts.end(), random);
  for (int round = 0; round < 18; ++round) {
    std::shuffle(all.begin(), all.end(), random);
    const std::vector<Sequence*> some(all.begin(), all.begin() + counts[round % counts.size()]);
    for (Sequence* sequence : some) decoding.Append(sequence);
    decoding.Step(some);
  }
}

TEST(Steps, ThatAreNotAllOfOneLastTokenDoNotFit) {
  Decoding decoding({2, 2, 8, 4, 100});
  Sequence* const a = decoding.NewSequence(5);
  Sequence* const b = decoding.NewSequence(9);
  EXPECT_TRUE(decoding.Fit({{a, 4, 1, true}, {b, 8, 1, true}}));
  EXPECT_FALSE(decoding.Fit({}));
  EXPECT_FALSE(decoding.Fit({{a, 4, 1, true}, {b, 7, 2, true}}));
  EXPECT_FALSE(decoding.Fit({{a, 4, 1, true}, {b, 7, 1, false}}));
  EXPECT_FALSE(decoding.Fit(std::vector<ScheduledChunk>(5, {a, 4, 1, true})));
}

TEST(Steps, OfMoreKeysThanTheyHaveRoomForDoNotFit) {
  // Of 32 parts each, where 32 key/value heads leave room for 256.
  Decoding decoding({32, 1, 8, 9, 20000});
  Sequence lengthy, brief;
  lengthy.ids = TokenIds(std::vector<int32_t>(19000));
  brief.ids = TokenIds(std::vector<int32_t>(500));
  lengthy.blocks = brief.blocks = std::vector<int32_t>(20000 / 16, 0);
  std::vector<ScheduledChunk> chunks(9, {&brief, 499, 1, true});
  EXPECT_TRUE(decoding.Fit(chunks));
  std::fill_n(chunks.begin(), 7, ScheduledChunk{&lengthy, 18999, 1, true});
  EXPECT_TRUE(decoding.Fit(chunks));
  std::fill_n(chunks.begin(), 8, ScheduledChunk{&lengthy, 18999, 1, true});
  EXPECT_FALSE(decoding.Fit(chunks));
}

TEST(Recordings, StandInTheLedgerWithTheirBuffer) {
  Decoding decoding({2, 2, 8, 4, 100});
  EXPECT_EQ(decoding.ledger().current(MemoryCategory::kActivations), decoding.graphs().bytes());
  EXPECT_EQ(decoding.ledger().current(MemoryCategory::kActivations, MemoryTier::kHost),
            decoding.graphs().bytes() - RunAgainRecorder::kPoolBytes);  // the buffer that is copied from
}

TEST(RecordingsOfAPlan, CountTheLargestForwardOnce) {
  const MetaStandsFor cuda(at::kCUDA);
  Ledger ledger;
  const KvCache cache({.layout = {16, 2, 8}, .layers = 1, .format = CacheFormat::kSlots}, 3, at::kMeta, &ledger);
  DecodeGraphOptions options;
  options.heads = 4;
  options.max_model_len = 100;
  options.max_num_seqs = 64;
  const int64_t before = ledger.total(MemoryTier::kDevice);
  const DecodeGraphs graphs(
      GraphRecordersFor(at::kMeta)(), &cache, options,
      [](const at::Tensor& ids_B, const at::Tensor&, PagedAttention&) {
        const at::Tensor wide = ids_B.unsqueeze(1).expand({ids_B.size(0), 1000}).to(at::kFloat);
        return wide.slice(1, 0, 10).clone();
      },
      &ledger);
  const int64_t largest = 64 * 1000 * 4 + 64 * 10 * 4;
  EXPECT_NEAR(static_cast<double>(graphs.bytes()), static_cast<double>(largest), 64 * 200);
  EXPECT_EQ(ledger.total(MemoryTier::kDevice) - before, graphs.bytes());
}

}  // namespace
}  // namespace quartet
