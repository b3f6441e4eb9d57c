// Adapters against what peft computes with them and makes of them; tools/golden/make_lora_golden.py.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/comm/testing/rank_threads.h"
#include "core/model/testing/whole_model.h"
#include "core/safetensors/reader.h"
#include "core/zero/sharded_model.h"
#include "core/zero/testing/golden_run.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

const std::string kScored = "core/model/testdata/";

at::Tensor GoldenTensor(const std::string& folder, const std::string& name) {
  const auto reader = CheckpointReader::Open(folder + "/golden");
  if (!reader.ok()) throw std::runtime_error(reader.status().ToString());
  const auto tensor = ReadTensor(**reader, name);
  if (!tensor.ok()) throw std::runtime_error(tensor.status().ToString());
  return *tensor;
}

// What the model of `folder` makes of the golden ids: products of hidden states and head, [26, V] or [26, 1].
at::Tensor Scored(const std::string& folder, const ShardedModelOptions& options, ProcessGroup& group) {
  Ledger ledger;
  const auto model = ShardedModel::Load(folder, options, &group, &ledger);
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  PackedSequences batch;
  batch.ids_T = GoldenTensor(folder, "ids").reshape(-1);
  batch.cu_seqlens = {0, 13, 26};
  at::Tensor scored;
  (*model)->Forward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
    scored = at::linear(hidden_TD, head_weight).cpu();
  });
  return scored;
}

ShardedModelOptions InFp32(int stage) {
  ShardedModelOptions options;
  options.zero_stage = stage;
  options.compute_dtype = at::kFloat;
  options.device = TestDevice();
  return options;
}

double RelativeDifference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

TEST(Adapters, GiveTheLogitsOfPeft) {
  for (const char* name : {"llama_lora", "llama_biases_lora", "qwen3_lora", "granite_lora", "olmo2_lora"}) {
    const std::string folder = kScored + name;
    const at::Tensor expected = GoldenTensor(folder, "logits").view({26, -1});
    for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 0}, {1, 2}, {1, 3}, {2, 2}, {2, 3}, {3, 3}}) {
      SCOPED_TRACE(testing::Message() << name << ", " << ranks << " ranks, stage " << stage);
      RunRanks(ranks, [&, stage = stage](ProcessGroup& group) {
        EXPECT_LT(RelativeDifference(Scored(folder, InFp32(stage), group), expected), 1e-5);
      });
    }
    // It is they that make the difference.
    RunRanks(1, [&](ProcessGroup& group) {
      const fs::path base = FreshFolder("without_adapters");
      fs::copy(ReadModelConfig(folder)->lora->base_folder, base);
      fs::create_directories(base / "golden");
      fs::copy_file(folder + "/golden/model.safetensors", base / "golden/model.safetensors");
      EXPECT_GT(RelativeDifference(Scored(base, InFp32(0), group), expected), 0.01);
    });
  }
}

TEST(Adapters, BringTheHeadOfARewardModel) {
  const std::string folder = kScored + "llama_critic_lora";
  const at::Tensor expected = GoldenTensor(folder, "values").view({26, 1});
  for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 3}}) {
    RunRanks(ranks, [&, stage = stage](ProcessGroup& group) {
      ShardedModelOptions options = InFp32(stage);
      options.head = HeadKind::kScalar;
      EXPECT_LT(RelativeDifference(Scored(folder, options, group), expected), 1e-5);
    });
  }
  RunRanks(1, [&](ProcessGroup& group) {
    Ledger ledger;
    const absl::Status status = ShardedModel::Load(folder, InFp32(0), &group, &ledger).status();
    EXPECT_NE(status.message().find("modules_to_save"), std::string::npos) << status;
  });
}

// A rank more costs nothing: at stage 3 the model is divided, the adapters are not.
TEST(Adapters, AreHeldWholeBesideADividedModel) {
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    const auto model = ShardedModel::Load(kScored + "llama_lora", InFp32(3), &group, &ledger);
    ASSERT_TRUE(model.ok()) << model.status();
    const ShardedModel& adapters = *(*model)->adapters();
    EXPECT_EQ(adapters.layout().groups.size(), 2);
    EXPECT_EQ(adapters.options().zero_stage, 2);
    EXPECT_LT((*model)->shard(1).numel(), (*model)->layout().groups[1].numel());
    EXPECT_GE(adapters.shard(1).numel(), adapters.layout().groups[1].numel());
  });
}

TEST(Adapters, ThatLackATensorAreRefusedOnEveryRank) {
  const fs::path folder = FreshFolder("lacks_a_tensor");
  fs::create_directories(folder);
  fs::copy_file(kScored + "llama_biases_lora/adapter_model.safetensors", folder / "adapter_model.safetensors");
  auto config = nlohmann::json::parse(std::ifstream(kScored + "llama_biases_lora/adapter_config.json"));
  config["target_modules"] = {"q_proj", "up_proj", "down_proj"};
  std::ofstream(folder / "adapter_config.json") << config;
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    const absl::Status status = ShardedModel::Load(folder, InFp32(3), &group, &ledger).status();
    EXPECT_NE(status.message().find("down_proj.lora_A.weight is missing"), std::string::npos) << status;
  });
}

}  // namespace
}  // namespace quartet
