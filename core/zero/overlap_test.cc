// What a trace of a training step shows: communication goes on while blocks compute.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/base/files/files.h"
#include "core/base/trace.h"
#include "core/comm/testing/rank_threads.h"
#include "core/model/initialize.h"
#include "core/zero/trainable_model.h"

namespace quartet {
namespace {

constexpr int kOverlappedBlocks = 4;

ModelConfig TinyModel() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 64;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = kOverlappedBlocks;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 10000;
  config.tie_word_embeddings = false;
  return config;
}

// A group of a slow rank: it comes late to every gather, so that the others' gathers take long.
class SlowGroup : public ProcessGroup {
 public:
  explicit SlowGroup(ProcessGroup* group) : group_(group) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return group_->AllGatherInPlace(buffer);
  }
  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    return group_->ReduceScatterSum(output, input);
  }
  std::unique_ptr<CollectiveWork> AllReduceSum(const at::Tensor& tensor) override {
    return group_->AllReduceSum(tensor);
  }
  std::unique_ptr<CollectiveWork> AllReduceMax(const at::Tensor& tensor) override {
    return group_->AllReduceMax(tensor);
  }
  void Barrier() override { group_->Barrier(); }
  void Leave(const std::string& why) override { group_->Leave(why); }
  CommVolume volume(CollectiveKind kind) const override { return group_->volume(kind); }
  absl::Duration timeout() const override { return group_->timeout(); }

 private:
  ProcessGroup* const group_;
};

struct Span {
  double start = 0, end = 0;
  bool Covers(const Span& other) const { return start <= other.start && other.end <= end; }
};

// Spans of a rank's lane by name, in the order of their starts.
using Lane = std::map<std::string, std::vector<Span>>;

// Of all lanes, by their titles ("rank 0 all-gather").
std::map<std::string, Lane> ReadTrace(const std::string& path) {
  auto text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  const auto events = nlohmann::json::parse(text->substr(0, text->rfind(',')) + "]");
  std::map<int, std::string> titles;
  for (const auto& event : events) {
    if (event["name"] == "thread_name") titles[event["tid"].get<int>()] = event["args"]["name"];
  }
  std::map<std::string, Lane> lanes;
  for (const auto& event : events) {
    if (event["ph"] != "X") continue;
    const double start = event["ts"].get<double>();
    lanes[titles[event["tid"].get<int>()]][event["name"].get<std::string>()].push_back(
        {start, start + event["dur"].get<double>()});
  }
  for (auto& [title, lane] : lanes) {
    for (auto& [name, spans] : lane) {
      std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    }
  }
  return lanes;
}

class Overlap : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Checkpointing, Overlap, testing::Bool());

TEST_P(Overlap, TheNextGroupIsGatheredAndTheLastGradientReducedWhileABlockComputes) {
  const std::string folder = testing::TempDir() + "/overlap_model", trace = testing::TempDir() + "/overlap.json";
  ASSERT_TRUE(WriteRandomModel(TinyModel(), HeadKind::kVocabulary, 1, Dtype::kF32, folder).ok());
  // Over Gloo the end of a collective is the end of waiting for it, so that what the trace shows depends on no timing.
  RunRanks(
      2,
      [&](ProcessGroup& group) {
        SlowGroup slow(&group);
        Ledger ledger;
        TrainableModelOptions options;
        options.model.zero_stage = 3;
        options.model.compute_dtype = at::kFloat;
        options.gradient_checkpointing = GetParam();
        auto model = TrainableModel::Load(folder, options, group.rank() == 1 ? &slow : &group, &ledger);
        ASSERT_TRUE(model.ok()) << model.status();
        group.Barrier();
        if (group.rank() == 0) {
          ASSERT_TRUE(StartTrace(trace, "trainer", 0).ok());
        }
        group.Barrier();
        PackedSequences batch;
        batch.ids_T = at::arange(16, at::TensorOptions(at::kLong));
        batch.cu_seqlens = {0, 16};
        (*model)->ForwardBackward(batch, [](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
          return hidden_TD.matmul(head_VD.t()).square().mean();
        });
        (*model)->Step(1e-3, 1.0);
        group.Barrier();
        if (group.rank() == 0) {
          EXPECT_TRUE(StopTrace().ok());
        }
      },
      absl::Seconds(60), "gloo");

  std::map<std::string, Lane> lanes = ReadTrace(trace);
  for (const std::string rank : {"rank 0", "rank 1"}) {
    Lane& compute = lanes[rank];
    // Forward: embedding, blocks, head; backward: blocks from the last to the first.
    const std::vector<Span>& gathers = lanes[rank + " all-gather"]["all-gather"];
    ASSERT_EQ(gathers.size(), 2 + 2 * kOverlappedBlocks) << rank;
    // Backward: head, blocks from the last to the first, embedding.
    const std::vector<Span>& reductions = lanes[rank + " reduce-scatter"]["reduce-scatter"];
    ASSERT_EQ(reductions.size(), 2 + kOverlappedBlocks) << rank;
    for (int block = 0; block < kOverlappedBlocks; ++block) {
      const std::vector<Span>& forward = compute["forward block " + std::to_string(block)];
      ASSERT_EQ(forward.size(), 1) << rank;
      EXPECT_TRUE(gathers[block + 2].Covers(forward[0])) << rank << ": forward block " << block;

      const std::vector<Span>& backward = compute["backward block " + std::to_string(block)];
      ASSERT_EQ(backward.size(), 1) << rank;
      const int back = kOverlappedBlocks - 1 - block;
      if (block > 0) {
        EXPECT_TRUE(gathers[kOverlappedBlocks + 3 + back].Covers(backward[0])) << rank << ": backward block " << block;
      }
      EXPECT_TRUE(reductions[back].Covers(backward[0])) << rank << ": backward block " << block;
    }
    EXPECT_EQ(compute["optimizer"].size(), 1) << rank;
  }
}

}  // namespace
}  // namespace quartet
