// Decoding by recordings on the CPU, where a recording runs again what was recorded on the tensors of then, against
// forwards that are made anew: through blocks that fill up, a sleep, and new weights.

#include "rollout/engine/forward_pass.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/process_group.h"
#include "core/memory/ledger.h"
#include "core/model/testing/golden_models.h"
#include "core/safetensors/reader.h"
#include "gtest/gtest.h"
#include "rollout/engine/testing/run_again_recorder.h"

namespace quartet {
namespace {

constexpr int64_t kBlocks = 120;

std::string Folder(const std::string& model) { return "core/model/testdata/" + model; }

// An engine's part that computes, with a cache as devices have it.
class Computing {
 public:
  Computing(const std::string& model, bool records, CacheFormat format = CacheFormat::kSlots,
            at::ScalarType dtype = at::kBFloat16)
      : format_(format) {
    ProcessGroupOptions alone;
    group_ = *MakeProcessGroup(nullptr, alone);
    ShardedModelOptions options;
    options.zero_stage = 0;
    options.compute_dtype = dtype;
    weights_ = std::make_unique<EngineWeights>(*ShardedModel::Load(Folder(model), options, group_.get(), &ledger_));
    ForwardOptions forward;
    forward.max_num_seqs = 20;
    forward.max_model_len = 200;
    if (records) {
      forward.new_recorder = [this] {
        ++recorders_;
        return std::make_unique<RunAgainRecorder>();
      };
    }
    forward_ = std::make_unique<ForwardPass>(forward, weights_.get(), nullptr, &ledger_);
    TakeCache();
  }

  void TakeCache() {
    const ModelConfig& config = weights_->model().config();
    forward_->TakeCache({.layout = {16, config.num_key_value_heads, config.head_dim},
                         .layers = config.num_hidden_layers,
                         .dtype = weights_->model().options().compute_dtype,
                         .format = format_},
                        kBlocks);
    forward_->Record();
  }

  // Another model's weights, as an update brings them.
  void Commit(const std::string& model, bool records = true) {
    const auto staging = weights_->NewStaging();
    const auto reader = CheckpointReader::Open(Folder(model));
    for (const StagedRange& range : staging->ranges()) {
      ASSERT_EQ(range.elements.rows, 1);
      // The folder's fp32, rounded as Load does.
      std::vector<float> wide(range.elements.count);
      const std::string& name = weights_->tensors()[range.tensor].name;
      ASSERT_TRUE(
          (*reader)
              ->ReadRange(name, range.elements.begin, range.elements.count, reinterpret_cast<char*>(wide.data()))
              .ok());
      for (size_t i = 0; i < wide.size(); ++i) static_cast<c10::BFloat16*>(range.data)[i] = wide[i];
    }
    weights_->Use(*staging);
    if (records) forward_->Record();
  }

  ForwardPass& operator*() { return *forward_; }
  ForwardPass* operator->() { return forward_.get(); }
  EngineWeights& weights() { return *weights_; }
  int recorders() const { return recorders_; }

 private:
  const CacheFormat format_;
  Ledger ledger_;
  std::unique_ptr<ProcessGroup> group_;
  std::unique_ptr<EngineWeights> weights_;
  std::unique_ptr<ForwardPass> forward_;
  int recorders_ = 0;
};

// The same steps for several.
class Steps {
 public:
  explicit Steps(std::vector<Computing*> all) : all_(std::move(all)), differences_(all_.size()) { NewBlocks(); }

  // Of a few tokens, none of which is computed.
  void NewSequences(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      Sequence& sequence = *sequences_.emplace_back(std::make_unique<Sequence>());
      const int64_t length = 1 + static_cast<int64_t>(random_() % 40);
      for (int64_t t = 0; t < length; ++t) sequence.ids.push_back(static_cast<int32_t>(random_() % 101));
      ComputeAll(sequence);
    }
  }

  // After a sleep: everything is computed anew.
  void ComputeAgain() {
    NewBlocks();
    for (const auto& sequence : sequences_) {
      sequence->blocks.clear();
      ComputeAll(*sequence);
    }
  }

  // A token more of `count` sequences, in some order.
  void Decode(int64_t count) {
    std::vector<Sequence*> some;
    for (const auto& sequence : sequences_) some.push_back(sequence.get());
    std::shuffle(some.begin(), some.end(), random_);
    some.resize(static_cast<size_t>(count));
    std::vector<ScheduledChunk> chunks;
    for (Sequence* sequence : some) {
      sequence->ids.push_back(static_cast<int32_t>(random_() % 101));
      chunks.push_back({sequence, static_cast<int64_t>(sequence->ids.size()) - 1, 1, true});
    }
    Run(chunks);
  }

  // Of logits, from the first one's.
  double largest_difference(size_t of = 1) const { return differences_[of]; }

 private:
  void NewBlocks() {
    free_.clear();
    for (int32_t block = 0; block < kBlocks; ++block) free_.push_back(block);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  void ComputeAll(Sequence& sequence) { Run({{&sequence, 0, static_cast<int64_t>(sequence.ids.size()), true}}); }

  void Run(const std::vector<ScheduledChunk>& chunks) {
    for (const ScheduledChunk& chunk : chunks) {
      while (chunk.sequence->blocks.size() * 16 < chunk.sequence->ids.size()) {
        ASSERT_FALSE(free_.empty());
        chunk.sequence->blocks.push_back(free_.back());
        free_.pop_back();
      }
    }
    const at::Tensor expected = (*all_[0])->Run(chunks, {}, nullptr).clone();
    ASSERT_EQ(expected.size(0), static_cast<int64_t>(chunks.size()));
    for (size_t i = 1; i < all_.size(); ++i) {
      const at::Tensor found = (*all_[i])->Run(chunks, {}, nullptr);
      ASSERT_EQ(found.sizes(), expected.sizes());
      differences_[i] = std::max(differences_[i], (found - expected).abs().max().item<double>());
    }
  }

  const std::vector<Computing*> all_;
  std::mt19937 random_{5};
  std::vector<int32_t> free_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<double> differences_;
};

class Recorded : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, Recorded, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

TEST_P(Recorded, StepsGiveTheLogitsOfForwardsThatAreNot) {
  Computing eager(GetParam(), false), recorded(GetParam(), true);
  ASSERT_NE(recorded->graphs(), nullptr);
  EXPECT_EQ(eager->graphs(), nullptr);
  Steps steps({&eager, &recorded});
  steps.NewSequences(20);
  const int64_t prompts = recorded->replays();  // those of one token
  int64_t replays = 0;
  for (const int64_t count : {20, 1, 7, 3, 8, 9, 20, 2, 19, 16, 5, 4, 17, 20, 20, 20, 20, 20, 1, 1, 1, 20}) {
    steps.Decode(count);
    EXPECT_EQ(recorded->replays(), prompts + ++replays);
  }
  EXPECT_EQ(steps.largest_difference(), 0);
  EXPECT_EQ(eager->replays(), 0);
  EXPECT_EQ(recorded.recorders(), 1);
}

// The CPU's own kernel over another cache shares nothing with recordings: in fp32 it says how far off bf16 may be.
TEST_P(Recorded, StepsAreAsNearToFp32AsTheCpusOwn) {
  Computing fp32(GetParam(), false, CacheFormat::kVectors, at::kFloat);
  Computing bf16(GetParam(), false, CacheFormat::kVectors), recorded(GetParam(), true);
  Steps steps({&fp32, &bf16, &recorded});
  steps.NewSequences(12);
  for (const int64_t count : {12, 3, 9, 12, 12, 1, 12, 5}) steps.Decode(count);
  EXPECT_GT(recorded->replays(), 7);
  EXPECT_GT(steps.largest_difference(1), 0);
  EXPECT_LE(steps.largest_difference(2), 1.5 * steps.largest_difference(1));
}

TEST(RecordedForwards, AreMadeAgainAfterASleep) {
  Computing eager("llama", false), recorded("llama", true);
  Steps steps({&eager, &recorded});
  steps.NewSequences(9);
  steps.Decode(9);
  for (Computing* one : {&eager, &recorded}) {
    (*one)->DropCache();
    EXPECT_EQ((*one)->graphs(), nullptr);
    one->TakeCache();
  }
  EXPECT_EQ(recorded.recorders(), 2);
  steps.ComputeAgain();
  const int64_t before = recorded->replays();
  for (const int64_t count : {9, 3, 8}) steps.Decode(count);
  EXPECT_EQ(recorded->replays(), before + 3);
  EXPECT_EQ(steps.largest_difference(), 0);
}

TEST(RecordedForwards, ReadNewWeights) {
  Computing eager("llama", false), recorded("llama", true);
  Steps steps({&eager, &recorded});
  steps.NewSequences(9);
  steps.Decode(9);
  eager.Commit("mistral");
  recorded.Commit("mistral", /*records=*/false);
  // What was recorded reads from where the old ones lay: not before it is recorded again.
  const int64_t before = recorded->replays();
  steps.Decode(4);
  EXPECT_EQ(recorded->replays(), before);
  recorded->Record();
  for (const int64_t count : {9, 2}) steps.Decode(count);
  EXPECT_EQ(recorded->replays(), before + 2);
  EXPECT_EQ(recorded.recorders(), 2);
  recorded->Record();
  EXPECT_EQ(recorded.recorders(), 2) << "nothing has moved";
  EXPECT_EQ(steps.largest_difference(), 0);
}

TEST(RecordedForwards, WaitForWeightsThatAreReleased) {
  Computing eager("llama", false), recorded("llama", true);
  Steps steps({&eager, &recorded});
  steps.NewSequences(5);
  recorded->DropCache();
  recorded.weights().Release();
  recorded.TakeCache();
  EXPECT_EQ(recorded->graphs(), nullptr);
  recorded.Commit("llama");
  EXPECT_NE(recorded->graphs(), nullptr);
  steps.ComputeAgain();
  const int64_t before = recorded->replays();
  steps.Decode(5);
  EXPECT_EQ(recorded->replays(), before + 1);
  EXPECT_EQ(steps.largest_difference(), 0);
}

TEST(RecordedForwards, AreNotUsedWherePromptsAreTold) {
  Computing recorded("llama", true);
  Sequence sequence;
  sequence.ids = TokenIds({5, 6, 7});
  sequence.blocks = {3};
  recorded->Run({{&sequence, 0, 3, true}}, {}, nullptr);
  sequence.ids.push_back(8);
  size_t told = 0;
  recorded->Run({{&sequence, 3, 1, true}}, {0}, [&](size_t, size_t count, const at::Tensor&) { told += count; });
  EXPECT_EQ(told, 1);
  EXPECT_EQ(recorded->replays(), 0);
}

TEST(RecordedForwards, TakeASpareBlockAndAreNotMadeInFp32) {
  Computing bf16("llama", true), fp32("llama", true, CacheFormat::kSlots, at::kFloat);
  EXPECT_EQ(bf16->cache().blocks(), kBlocks + 1);
  EXPECT_EQ(fp32->cache().blocks(), kBlocks);
  EXPECT_EQ(fp32->graphs(), nullptr);
}

}  // namespace
}  // namespace quartet
