// The folders that a trained model is saved as.

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/fail_point.h"
#include "core/comm/testing/rank_threads.h"
#include "core/model/initialize.h"
#include "core/safetensors/reader.h"
#include "core/zero/testing/golden_run.h"
#include "core/zero/trainable_model.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

// Every tensor of a folder, as stored.
std::map<std::string, std::pair<Dtype, std::vector<char>>> ReadFolder(const std::string& folder) {
  auto reader = CheckpointReader::Open(folder);
  EXPECT_TRUE(reader.ok()) << reader.status();
  std::map<std::string, std::pair<Dtype, std::vector<char>>> tensors;
  if (!reader.ok()) return tensors;
  for (const auto& [name, info] : (*reader)->tensors()) {
    std::vector<char> bytes(info.bytes);
    EXPECT_TRUE((*reader)->ReadRange(name, 0, info.numel(), bytes.data()).ok());
    tensors[name] = {info.dtype, bytes};
  }
  return tensors;
}

TEST(TrainableModel, WhatWasNotTrainedIsSavedAsItWasRead) {
  for (const char* name : {"llama", "qwen2_tied", "granite", "olmo2"}) {
    const GoldenRun golden = ReadGoldenRun(name);
    for (int stage : {0, 2, 3}) {
      const std::string folder = FreshFolder("unchanged");
      RunRanks(2, [&](ProcessGroup& group) {
        Ledger ledger;
        auto model = LoadOrDie(golden.folder, golden.Fp32(stage, true), group, ledger);
        auto bytes = model->Save(folder);
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        int64_t on_disk = 0;
        for (const auto& file : fs::directory_iterator(folder)) on_disk += file.file_size();
        EXPECT_EQ(*bytes, on_disk);
      });
      EXPECT_EQ(ReadFolder(folder), ReadFolder(golden.folder));
    }
  }
}

TEST(TrainableModel, SavedWeightsLoadAtAnotherWorldSizeBitForBit) {
  const GoldenRun golden = ReadGoldenRun("llama");
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::string first = FreshFolder("first"), second = FreshFolder("second");
    RunRanks(3, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = golden.Fp32(3, true);
      options.model.compute_dtype = dtype;
      auto model = LoadOrDie(kLlama, options, group, ledger);
      Accumulate(*model, golden.sequences, 4);
      model->Step(golden.learning_rate, golden.max_norm);
      EXPECT_TRUE(model->Save(first).ok());
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
    });
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = golden.Fp32(2, true);
      options.model.compute_dtype = dtype;
      auto model = LoadOrDie(first, options, group, ledger);
      EXPECT_TRUE(model->Save(second).ok());
    });
    const auto saved = ReadFolder(first);
    EXPECT_EQ(saved, ReadFolder(second));
    EXPECT_EQ(saved.begin()->second.first, dtype == at::kFloat ? Dtype::kF32 : Dtype::kBF16);
    EXPECT_NE(saved, ReadFolder(kLlama));
    const auto config = nlohmann::json::parse(std::ifstream(first + "/config.json"));
    EXPECT_EQ(config["torch_dtype"], dtype == at::kFloat ? "float32" : "bfloat16");
    EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  }
}

std::vector<float> ReadFloats(const std::string& folder, const std::string& name) {
  const auto tensors = ReadFolder(folder);
  const auto& [type, bytes] = tensors.at(name);
  EXPECT_EQ(type, Dtype::kF32);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(TrainableModel, SavesTheMovingAverageOfTheWeights) {
  const GoldenRun golden = ReadGoldenRun("llama");
  const std::string tensor = "model.layers.0.mlp.up_proj.weight";
  for (const auto& [ranks, shard_size, stage] : {std::tuple(1, 1, 3), {2, 2, 3}, {4, 2, 3}, {2, 2, 0}, {2, 2, 2}}) {
    std::vector<float> expected = ReadFloats(kLlama, tensor);
    const std::vector<float> original = expected;
    std::vector<std::string> folders;
    for (int i = 0; i < 5; ++i) folders.push_back(FreshFolder("average_" + std::to_string(i)));
    RunMesh(ranks, shard_size, [&, stage = stage](Mesh& mesh) {
      ProcessGroup& group = mesh.world();
      Ledger ledger;
      TrainableModelOptions options = golden.Fp32(stage, true);
      options.ema_decay = 0.75;
      auto model = *TrainableModel::Load(kLlama, options, &mesh, &ledger);
      EXPECT_GT(ledger.current(MemoryCategory::kOptimizer, MemoryTier::kHost), 0);
      for (int step = 0; step < 4; ++step) {
        // A step that is skipped does not count.
        Accumulate(*model, golden.sequences, 4);
        if (step == 2) {
          const PackedSequences batch = PackIds(golden.sequences);
          model->ForwardBackward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor&) {
            return hidden_TD.sum() * std::numeric_limits<double>::infinity();
          });
        }
        EXPECT_EQ(model->Step(golden.learning_rate, golden.max_norm).skipped, step == 2);
        ASSERT_TRUE(model->Save(folders[step]).ok());
        if (group.rank() == 0 && step != 2) {
          const std::vector<float> weights = ReadFloats(folders[step], tensor);
          for (size_t i = 0; i < weights.size(); ++i) expected[i] = 0.75f * expected[i] + 0.25f * weights[i];
        }
      }
      const std::string& folder = folders[4];
      auto bytes = model->SaveAverage(folder);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_GT(*bytes, 0);
      EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
      if (group.rank() == 0) {
        EXPECT_THAT(ReadFloats(folder, tensor), testing::Pointwise(testing::FloatNear(1e-6), expected));
        EXPECT_NE(ReadFloats(folder, tensor), original);
        const auto config = nlohmann::json::parse(std::ifstream(folder + "/config.json"));
        EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
      }
    });
  }
}

TEST(TrainableModel, SavesAHeadThatLoadsAgain) {
  for (const char* type : {"llama", "granite", "olmo2"}) {
    for (const char* head : {"score", "value_head"}) {
      ModelConfig config = *ReadModelConfig(ReadGoldenRun(type).folder);
      config.scalar_head = head;
      const std::string source = FreshFolder("source"), saved = FreshFolder("saved");
      ASSERT_TRUE(WriteRandomModel(config, HeadKind::kScalar, 7, Dtype::kF32, source).ok());
      const auto weights = ReadFolder(source);
      ASSERT_EQ(weights.count(std::string(head) + ".weight"), 1u);
      TrainableModelOptions options = ReadGoldenRun(type).Fp32(2, true);
      options.model.head = HeadKind::kScalar;
      RunRanks(2, [&](ProcessGroup& group) {
        Ledger ledger;
        ASSERT_TRUE(LoadOrDie(source, options, group, ledger)->Save(saved).ok());
        LoadOrDie(saved, options, group, ledger);
      });
      EXPECT_EQ(ReadFolder(saved), weights) << type << " " << head;
    }
  }
}

TEST(TrainableModel, SavesTheTokenizerThatItsFolderHadAtLoad) {
  const std::string source = FreshFolder("source"), saved = FreshFolder("saved");
  fs::create_directories(source);
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(fs::path(kLlama) / name, source + "/" + name);
  std::ofstream(source + "/tokenizer.json") << "of then";
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadOrDie(source, ReadGoldenRun("llama").Fp32(3, true), group, ledger);
    if (group.rank() == 0) fs::remove_all(source);
    EXPECT_TRUE(model->Save(saved).ok());
  });
  std::string text;
  std::getline(std::ifstream(saved + "/tokenizer.json"), text);
  EXPECT_EQ(text, "of then");
}

TEST(TrainableModel, RefusesToSaveOverAFolderOnEveryRank) {
  const std::string folder = FreshFolder("taken");
  fs::create_directories(folder);
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadOrDie(kLlama, ReadGoldenRun("llama").Fp32(3, true), group, ledger);
    const absl::Status status = model->Save(folder).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(folder));
  });
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(TrainableModel, ADiskMayTakeLongerThanACollective) {
  ASSERT_TRUE(SetFailPoints("trainable_model.save=sleep:1500").ok());
  const std::string folder = FreshFolder("slow_disk");
  RunRanks(
      2,
      [&](ProcessGroup& group) {
        Ledger ledger;
        auto model = LoadOrDie(kLlama, ReadGoldenRun("llama").Fp32(3, true), group, ledger);
        const auto bytes = model->Save(folder);
        EXPECT_TRUE(bytes.ok()) << bytes.status();
      },
      absl::Milliseconds(700));
  ASSERT_TRUE(SetFailPoints("").ok());
  EXPECT_EQ(ReadFolder(folder), ReadFolder(kLlama));
}

TEST(TrainableModel, ASaveThatFailsLeavesNothingUnderTheName) {
  const std::string parent = FreshFolder("parent");
  std::ofstream(parent) << "a file where a folder should be";
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadOrDie(kLlama, ReadGoldenRun("llama").Fp32(3, true), group, ledger);
    const absl::Status status = model->Save(parent + "/model").status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(parent));
    EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
    // The model trains on.
    Accumulate(*model, kFewSequences, 2);
    EXPECT_FALSE(model->Step(1e-3, 1).skipped);
  });
  EXPECT_TRUE(fs::is_regular_file(parent));
}

}  // namespace
}  // namespace quartet
