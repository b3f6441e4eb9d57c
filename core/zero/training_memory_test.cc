// What training takes stands in the ledger while it is held, and is given back after each call.

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/comm/testing/rank_threads.h"
#include "core/memory/block_cache.h"
#include "core/model/decoder/vocabulary_head.h"
#include "core/zero/trainable_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "core/zero/testdata/llama";
constexpr int64_t kTokens = 48, kHidden = 32, kBlocks = 3, kVocabulary = 89;

TrainableModelOptions Options(int stage, bool checkpointing, at::ScalarType dtype = at::kFloat) {
  TrainableModelOptions options;
  options.model.zero_stage = stage;
  options.model.compute_dtype = dtype;
  options.gradient_checkpointing = checkpointing;
  return options;
}

// Of sequences of `length` tokens.
PackedSequences Batch(int64_t tokens = kTokens, int64_t length = kTokens / 2) {
  std::vector<int64_t> ids(tokens), cu_seqlens;
  for (int64_t t = 0; t < tokens; ++t) ids[t] = 3 + t * 7 % (kVocabulary - 3);
  for (int64_t start = 0; start <= tokens; start += length) cu_seqlens.push_back(start);
  return {at::tensor(ids, at::TensorOptions(at::kLong)), cu_seqlens};
}

at::Tensor Loss(const PackedSequences& batch, const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
  return ChunkedLogProbs(hidden_TD, head_VD, batch.ids_T, /*temperature=*/1, {.wanted = true}).log_prob_T.mean();
}

using Holdings = std::array<std::array<int64_t, kNumMemoryCategories>, kNumMemoryTiers>;

Holdings Current(const Ledger& ledger) {
  Holdings held;
  for (int t = 0; t < kNumMemoryTiers; ++t) {
    for (int c = 0; c < kNumMemoryCategories; ++c) {
      held[t][c] = ledger.current(static_cast<MemoryCategory>(c), static_cast<MemoryTier>(t));
    }
  }
  return held;
}

class TrainingMemory : public ::testing::TestWithParam<std::tuple<int, int, bool, at::ScalarType>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TrainingMemory,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(0, 2, 3), ::testing::Bool(),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "RanksStage", std::get<1>(info.param),
                                               std::get<2>(info.param) ? "Checkpointing" : "Graphs",
                                               c10::toString(std::get<3>(info.param)));
                         });

TEST_P(TrainingMemory, IsHeldDuringACallAndGivenBackAfterIt) {
  const auto [ranks, stage, checkpointing, dtype] = GetParam();
  const int64_t element = static_cast<int64_t>(c10::elementSize(dtype));
  RunRanks(ranks, [=, options = Options(stage, checkpointing, dtype)](ProcessGroup& group) {
    Ledger ledger;
    auto loaded = TrainableModel::Load(kModel, options, &group, &ledger);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    TrainableModel& model = **loaded;
    const Holdings before = Current(ledger);
    const PackedSequences batch = Batch();
    for (int step = 0; step < 2; ++step) {
      ledger.ResetPeaks();
      model.ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
        EXPECT_GE(ledger.current(MemoryCategory::kActivations), kBlocks * kTokens * kHidden * element)
            << "the blocks' inputs are not there";
        return Loss(batch, hidden_TD, head_VD);
      });
      EXPECT_EQ(Current(ledger), before);
      EXPECT_GE(ledger.peak(MemoryCategory::kLogits), 2 * kTokens * kVocabulary * 4);
      if (group.size() > 1 && options.model.zero_stage != 0) {
        const int64_t block = model.model().layout().groups[1].numel() * 4;
        EXPECT_GE(ledger.peak(MemoryCategory::kCommunication), 2 * block) << "what is sent and what is received";
      }
      model.Step(1e-3, 1);
      EXPECT_EQ(Current(ledger), before);
    }
    model.model().Forward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
      const at::Tensor log_probs = Loss(batch, hidden_TD, head_VD);
      EXPECT_GT(ledger.current(MemoryCategory::kLogits), 0);
    });
    EXPECT_EQ(Current(ledger), before);
    loaded->reset();
    EXPECT_EQ(Current(ledger), Holdings{});
  });
}

TEST(TrainingMemoryOfOneRank, AnOptimizerHoldsABufferForEachPartOfItsState) {
  RunRanks(1, [](ProcessGroup& group) {
    const auto held = [&](const std::string& optim, double momentum) {
      TrainerConfig trainer;
      trainer.set_optim(optim);
      trainer.set_momentum(momentum);
      TrainableModelOptions options = Options(3, true);
      options.optimizer = MakeOptimizer(trainer);
      Ledger ledger;
      const auto model = TrainableModel::Load(kModel, options, &group, &ledger);
      EXPECT_TRUE(model.ok()) << model.status();
      return std::pair(ledger.current(MemoryCategory::kOptimizer), ledger.current(MemoryCategory::kParameters));
    };
    const auto [adam, parameters] = held("adam", 0);
    EXPECT_EQ(adam, 2 * parameters);
    EXPECT_EQ(held("sgd", 0.9).first, parameters);
    EXPECT_EQ(held("sgd", 0).first, 0);
  });
}

TEST(TrainingMemoryOfOneRank, CheckpointingHoldsOneBlocksGraphInsteadOfAll) {
  std::array<int64_t, 2> peaks;
  for (const bool checkpointing : {false, true}) {
    RunRanks(1, [&](ProcessGroup& group) {
      Ledger ledger;
      auto model = TrainableModel::Load(kModel, Options(3, checkpointing), &group, &ledger);
      ASSERT_TRUE(model.ok()) << model.status();
      const PackedSequences batch = Batch();
      (*model)->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
        return Loss(batch, hidden_TD, head_VD);
      });
      peaks[checkpointing] = ledger.peak(MemoryCategory::kActivations);
    });
  }
  // A block's graph holds its normed inputs, queries, keys, values, attention's output and the three of the MLP: more
  // than eight times its input, for each of three blocks.
  const int64_t input = kTokens * kHidden * 4;
  EXPECT_GT(peaks[false], peaks[true] + (kBlocks - 1) * 7 * input);
}

TEST(TrainingMemoryOfOneRank, ABudgetPassedInTheMiddleLeavesTheModelAsItWas) {
  RunRanks(1, [](ProcessGroup& group) {
    Ledger ledger;
    auto loaded = TrainableModel::Load(kModel, Options(3, true), &group, &ledger);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Holdings before = Current(ledger);
    const PackedSequences batch = Batch();
    const auto loss = [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
      return Loss(batch, hidden_TD, head_VD);
    };
    (*loaded)->ForwardBackward(batch, loss);
    const int64_t peak = ledger.peak_total(MemoryTier::kDevice);
    // Anywhere between what is resident and what the pass takes.
    const int64_t resident = ledger.total(MemoryTier::kDevice);
    for (const double share : {0.1, 0.3, 0.5, 0.7, 0.9, 0.99}) {
      ledger.SetBudget(MemoryTier::kDevice, resident + static_cast<int64_t>(share * (peak - resident)));
      EXPECT_THROW((*loaded)->ForwardBackward(batch, loss), MemoryBudgetError) << share;
      EXPECT_EQ(Current(ledger), before) << share;
    }
    ledger.SetBudget(MemoryTier::kDevice, peak);
    (*loaded)->ForwardBackward(batch, loss);
    EXPECT_FALSE((*loaded)->Step(1e-3, 0).skipped);
  });
}

// Micro-batches of many tokens, so that most tensors are blocks of the cache.
TEST(TrainingMemoryOfOneRank, WhatAMicroBatchFreesServesTheNext) {
  constexpr int64_t kLength = 64;
  RunRanks(1, [](ProcessGroup& group) {
    Ledger ledger;
    auto model = TrainableModel::Load(kModel, Options(3, /*checkpointing=*/false), &group, &ledger);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto pass = [&](int64_t tokens) {
      const PackedSequences batch = Batch(tokens, kLength);
      (*model)->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
        return Loss(batch, hidden_TD, head_VD);
      });
    };
    const ReuseScope reuse;
    pass(512 * kLength);
    const BlockCache::Stats first = HostBlocks().stats();
    ASSERT_GT(first.peak_in_use, size_t{50} << 20);
    for (const int64_t sequences : {512, 400, 512, 311, 505}) pass(sequences * kLength);
    const BlockCache::Stats last = HostBlocks().stats();
    EXPECT_EQ(last.peak_in_use, first.peak_in_use);
    EXPECT_LE(last.peak_held, BlockCache::HeldAtMost(last.peak_in_use));
    EXPECT_LE(last.mapped - first.mapped, first.peak_in_use / 10) << "of five micro-batches together";
  });
}

// Pages that this process has been given since it began, by whatever asked.
int64_t PageFaults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(TrainingMemoryOfOneRank, FromTheThirdStepOnTheSystemIsAskedForNothing) {
  constexpr int64_t kLength = 64;
  RunRanks(1, [](ProcessGroup& group) {
    Ledger ledger;
    auto model = TrainableModel::Load(kModel, Options(3, /*checkpointing=*/false), &group, &ledger);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto call = [&] {
      const ReuseScope reuse;
      for (const int64_t sequences : {256, 151}) {
        const PackedSequences batch = Batch(sequences * kLength, kLength);
        (*model)->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
          return Loss(batch, hidden_TD, head_VD);
        });
      }
      EXPECT_FALSE((*model)->Step(1e-3, 0).skipped);
    };
    for (int step = 0; step < 2; ++step) call();
    const BlockCache::Stats before = HostBlocks().stats();
    const int64_t faults = PageFaults();
    for (int step = 0; step < 3; ++step) call();
    EXPECT_EQ(HostBlocks().stats().mapped, before.mapped);
    EXPECT_LE((PageFaults() - faults) * sysconf(_SC_PAGESIZE), static_cast<int64_t>(before.peak_in_use / 100));
  });
}

}  // namespace
}  // namespace quartet
