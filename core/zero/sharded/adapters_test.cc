// Adapters against what peft computes with them and makes of them; tools/golden/make_lora_golden.py.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/comm/testing/rank_threads.h"
#include "core/model/testing/whole_model.h"
#include "core/safetensors/reader.h"
#include "core/zero/sharded/sharded_model.h"
#include "core/zero/testing/golden_run.h"
#include "core/zero/trainable_model.h"

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

// Else the first step's gradient is none, as if it had gone too far.
TEST(Adapters, AndModelsWithNumbersThatAreNotFiniteAreRefused) {
  const fs::path folder = FreshFolder("not_finite"), base = FreshFolder("not_finite_base");
  fs::copy(kScored + "llama_lora", folder);
  fs::copy(ReadModelConfig(folder)->lora->base_folder, base);
  for (const fs::path& file : {folder / "adapter_model.safetensors", base / "model.safetensors"}) {
    fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
    std::fstream weights(file, std::ios::in | std::ios::out | std::ios::binary);
    weights.seekp(-4, std::ios::end);
    weights.write("\xff\xff\xff\xff", 4);  // NaN, of the last tensor
    ASSERT_TRUE(weights.good());
  }
  for (const fs::path& model : {folder, base}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      const absl::Status status = ShardedModel::Load(model, InFp32(3), &group, &ledger).status();
      EXPECT_THAT(std::string(status.message()),
                  testing::AllOf(testing::HasSubstr(model.string()), testing::HasSubstr("that are not finite")));
    });
  }
}

const char* const kTrained[] = {"llama_lora", "qwen2_tied_lora", "olmo2_lora"};

// The gradient so far of each adapter, whole, by name. At stage 2 and 3.
std::map<std::string, at::Tensor> GradientsOf(TrainableModel& model, ProcessGroup& group) {
  std::map<std::string, at::Tensor> gradients;
  const ShardedModel& trained = model.trained();
  for (int g = 0; g < static_cast<int>(trained.layout().groups.size()); ++g) {
    const at::Tensor part = model.gradient(g);
    const at::Tensor whole = at::empty({group.size() * part.numel()}, part.options());
    whole.narrow(0, group.rank() * part.numel(), part.numel()).copy_(part);
    group.AllGatherInPlace(whole)->Wait();
    const std::vector<at::Tensor> views = trained.Views(g, whole);
    for (size_t p = 0; p < views.size(); ++p) {
      gradients[trained.layout().groups[g].parameters[p].name] = views[p].to(at::kCPU, at::kFloat);
    }
  }
  return gradients;
}

TEST(Adapters, HaveTheGradientsOfPeft) {
  for (const char* name : kTrained) {
    const GoldenRun golden = ReadGoldenRun(name);
    for (const auto& [ranks, stage, checkpointing] :
         {std::tuple{1, 0, true}, {1, 3, false}, {2, 2, true}, {2, 3, true}, {2, 3, false}, {3, 3, false}}) {
      SCOPED_TRACE(testing::Message() << name << ", " << ranks << " ranks, stage " << stage);
      RunRanks(ranks, [&, stage = stage, checkpointing = checkpointing](ProcessGroup& group) {
        Ledger ledger;
        const auto model = LoadOrDie(golden.folder, golden.Fp32(stage, checkpointing), group, ledger);
        EXPECT_NEAR(Accumulate(*model, golden.sequences, 2) / golden.losses[0], 1, 1e-6);
        const auto gradients = GradientsOf(*model, group);
        EXPECT_EQ(gradients.size(), model->model().config().lora->targets.size() * 2 * 3);
        for (const auto& [parameter, gradient] : gradients) {
          const at::Tensor expected = GoldenTensor(golden.folder, parameter);
          EXPECT_LT((gradient - expected).abs().max().item<double>(), 1e-6 * golden.grad_norms[0]) << parameter;
          EXPECT_GT(expected.abs().max().item<double>(), 1e-4) << parameter;
        }
      });
    }
  }
}

// What rounding hides in fp32.
TEST(Adapters, FollowPeftsLossesAndNormsToTheLastPlacesInFp64) {
  for (const char* name : kTrained) {
    const GoldenRun golden = ReadGoldenRun(name);
    for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 3}}) {
      RunRanks(ranks, [&, stage = stage](ProcessGroup& group) {
        Ledger ledger;
        TrainableModelOptions options = golden.Fp32(stage, false);
        options.model.compute_dtype = at::kDouble;
        const auto model = LoadOrDie(golden.folder, options, group, ledger);
        for (size_t step = 0; step < golden.losses.size(); ++step) {
          EXPECT_NEAR(Accumulate(*model, golden.sequences, 2) / golden.losses[step], 1, 1e-6) << name << " " << step;
          const StepResult result = model->Step(golden.learning_rate, golden.max_norm);
          EXPECT_NEAR(result.grad_norm / golden.grad_norms[step], 1, 1e-6) << name << " " << step;
        }
      });
    }
  }
}

TEST(Adapters, AreAllThatIsTrained) {
  const GoldenRun golden = ReadGoldenRun("llama_lora");
  for (const int stage : {0, 3}) {
    RunRanks(1, [&](ProcessGroup& group) {
      Ledger ledger;
      const auto model = LoadOrDie(golden.folder, golden.Fp32(stage, true), group, ledger);
      EXPECT_NE(&model->trained(), &model->model());
      // Two moments, and a gradient; padding is less than 256 bytes a tensor.
      const int64_t bytes = 4 * model->trained().layout().numel(), padding = 256 * 2 * 7 * 3;
      EXPECT_LE(ledger.current(MemoryCategory::kOptimizer), 2 * (bytes + padding));
      EXPECT_LE(ledger.current(MemoryCategory::kGradients), bytes + padding);
      const int groups = static_cast<int>(model->model().layout().groups.size());
      std::vector<at::Tensor> before;
      for (int g = 0; g < groups; ++g) before.push_back(model->model().shard(g).clone());
      const at::Tensor adapters = model->trained().shard(0).clone();
      Accumulate(*model, golden.sequences, 4);
      model->Step(golden.learning_rate, 1);
      for (int g = 0; g < groups; ++g) EXPECT_TRUE(at::equal(model->model().shard(g), before[g])) << g;
      EXPECT_FALSE(at::equal(model->trained().shard(0), adapters));
    });
  }
}

// The head of a reward model, too, where they bring it.
TEST(Adapters, AreTrainedWithTheirHeadAlikeAtEveryWorldSize) {
  std::vector<double> expected;
  for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 3}}) {
    std::vector<double> losses;
    RunRanks(ranks, [&, ranks = ranks, stage = stage](ProcessGroup& group) {
      Ledger ledger;
      TrainableModelOptions options = ReadGoldenRun("llama_lora").Fp32(stage, true);
      options.model.head = HeadKind::kScalar;
      const auto model = LoadOrDie(kScored + "llama_critic_lora", options, group, ledger);
      const int head = static_cast<int>(model->trained().layout().groups.size()) - 1;
      const at::Tensor before = model->trained().Gather(head).tensors().front().clone();
      const PackedSequences batch =
          ranks == 1 ? PackIds({kFewSequences[0], kFewSequences[1]}) : PackIds({kFewSequences[group.rank()]});
      for (int step = 0; step < 5; ++step) {
        at::Tensor loss = at::empty({1}, at::kDouble);
        loss[0] = model->ForwardBackward(batch, [](const at::Tensor& hidden_TD, const at::Tensor& head_1D) {
          return (hidden_TD.matmul(head_1D.t()) - 1).square().sum();
        });
        group.AllReduceSum(loss)->Wait();
        if (group.rank() == 0) losses.push_back(loss.item<double>());
        model->Step(1e-2, 1);
      }
      EXPECT_FALSE(at::equal(model->trained().Gather(head).tensors().front(), before));
    });
    EXPECT_LT(losses.back(), 0.9 * losses.front());
    if (expected.empty()) expected = losses;
    for (size_t step = 0; step < losses.size(); ++step) EXPECT_NEAR(losses[step] / expected[step], 1, 1e-4);
  }
}

// A folder that peft reads: the source's configuration, and the weights in the compute type.
TEST(Adapters, AreSavedAsTheFolderThatTheyCameFrom) {
  const GoldenRun golden = ReadGoldenRun("qwen2_tied_lora");
  const std::string folder = FreshFolder("saved_adapters"), average = FreshFolder("saved_average");
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    TrainableModelOptions options = golden.Fp32(3, true);
    options.ema_decay = golden.trainer.ema_decay();
    const auto model = LoadOrDie(golden.folder, options, group, ledger);
    for (size_t step = 0; step < golden.losses.size(); ++step) {
      Accumulate(*model, golden.sequences, 4);
      model->Step(golden.learning_rate, golden.max_norm);
    }
    ASSERT_TRUE(model->Save(folder).ok());
    ASSERT_TRUE(model->SaveAverage(average).ok());
    const double last = Accumulate(*model, golden.sequences, 4);
    const auto again = LoadOrDie(folder, options, group, ledger);
    EXPECT_EQ(Accumulate(*again, golden.sequences, 4), last);
    const auto averaged = LoadOrDie(average, options, group, ledger);
    EXPECT_NEAR(Accumulate(*averaged, golden.sequences, 4) / golden.average_loss, 1, 1e-5);
  });
  // The model's path is absolute there, so that the folder is read from anywhere.
  const auto config_of = [](const std::string& of) {
    nlohmann::json config = nlohmann::json::parse(std::ifstream(of + "/adapter_config.json"));
    std::string& base = config["base_model_name_or_path"].get_ref<std::string&>();
    base = fs::absolute(base).string();
    return config;
  };
  EXPECT_EQ(config_of(folder), config_of(golden.folder));
  EXPECT_TRUE(fs::exists(folder + "/adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(folder + "/config.json") || fs::exists(folder + "/model.safetensors"));
}

// What new adapters hold, by name, whole.
std::map<std::string, at::Tensor> NewAdapters(const GoldenRun& golden, uint64_t seed, int stage, ProcessGroup& group) {
  Ledger ledger;
  TrainableModelOptions options = golden.Fp32(stage, true);
  options.model.lora = LoraOptions{.r = 3, .alpha = 6};
  options.model.seed = seed;
  const auto model = LoadOrDie(golden.folder, options, group, ledger);
  std::map<std::string, at::Tensor> adapters;
  ShardedModel& trained = model->trained();
  for (int g = 0; g < static_cast<int>(trained.layout().groups.size()); ++g) {
    const GatheredGroup gathered = trained.Gather(g);
    for (size_t p = 0; p < gathered.tensors().size(); ++p) {
      adapters[trained.layout().groups[g].parameters[p].name] = gathered.tensors()[p].cpu().clone();
    }
  }
  return adapters;
}

// What tells one model from another whatever has read it: a hash of what the files have.
TEST(Adapters, BelongToAModelThatIsToldByItsElements) {
  const auto hash_of = [](const std::string& folder, int ranks, int stage, at::ScalarType type,
                          TensorParallel share = {}) {
    uint64_t hash = 0;
    RunRanks(ranks, [&](ProcessGroup& group) {
      Ledger ledger;
      ShardedModelOptions options = InFp32(stage);
      options.compute_dtype = type;
      options.tensor_parallel = share;
      options.lora = LoraOptions{.r = 2};
      const auto model = ShardedModel::Load(folder, options, &group, &ledger);
      ASSERT_TRUE(model.ok()) << model.status();
      const auto again = (*model)->ReadShards((*model)->NewStagedBuffers());
      ASSERT_TRUE(again.ok()) << again.status();
      if (ranks == 1 || stage == 0) {
        EXPECT_EQ(*again, (*model)->folder_hash());
      }
      if (group.rank() == ranks - 1) hash = (*model)->folder_hash();
    });
    return hash;
  };
  for (const char* name : {"llama", "qwen3"}) {
    const std::string folder = kScored + name;
    const uint64_t hash = hash_of(folder, 1, 0, at::kFloat);
    EXPECT_NE(hash, 0u);
    EXPECT_EQ(hash_of(folder, 1, 3, at::kBFloat16), hash);
    EXPECT_EQ(hash_of(folder, 2, 0, at::kFloat), hash);
    EXPECT_EQ(hash_of(folder, 3, 3, at::kBFloat16), hash);
    for (const int size : {2, 4}) {
      uint64_t of_shares = 0;
      for (int rank = 0; rank < size; ++rank) of_shares += hash_of(folder, 1, 0, at::kBFloat16, {rank, size});
      EXPECT_EQ(of_shares, hash) << size;
    }
  }
  EXPECT_NE(hash_of(kScored + "llama", 1, 0, at::kFloat), hash_of("core/zero/testdata/llama", 1, 0, at::kFloat));
  RunRanks(1, [&](ProcessGroup& group) {
    Ledger ledger;
    EXPECT_EQ((*ShardedModel::Load(kScored + "llama", InFp32(0), &group, &ledger))->folder_hash(), 0u);
  });
}

TEST(NewAdapters, AreDrawnAsPeftDrawsThemAndAlikeAtEveryWorldSize) {
  const GoldenRun golden = ReadGoldenRun("llama");
  std::map<std::string, at::Tensor> expected;
  RunRanks(1, [&](ProcessGroup& group) { expected = NewAdapters(golden, 7, 0, group); });
  ASSERT_EQ(expected.size(), 3u * 7 * 2);
  for (const auto& [name, value] : expected) {
    if (name.find("lora_B") != std::string::npos) {
      EXPECT_EQ(value.abs().max().item<float>(), 0) << name;
      continue;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(value.size(1)));
    EXPECT_LE(value.abs().max().item<float>(), bound) << name;
    EXPECT_GT(value.abs().max().item<float>(), 0.9 * bound) << name;
    EXPECT_LT(std::abs(value.mean().item<float>()), 0.2 * bound) << name;
    EXPECT_NEAR(value.square().mean().item<float>() / (bound * bound / 3), 1, 0.2) << name;
  }
  const auto differ = [&](const std::string& a, const std::string& b) {
    return !at::equal(expected.at("base_model.model.model.layers." + a + ".lora_A.weight"),
                      expected.at("base_model.model.model.layers." + b + ".lora_A.weight"));
  };
  EXPECT_TRUE(differ("0.self_attn.q_proj", "0.self_attn.k_proj"));
  EXPECT_TRUE(differ("0.self_attn.q_proj", "1.self_attn.q_proj"));
  RunRanks(3, [&](ProcessGroup& group) {
    for (const auto& [name, value] : NewAdapters(golden, 7, 3, group)) EXPECT_TRUE(at::equal(value, expected.at(name)));
  });
  RunRanks(1, [&](ProcessGroup& group) {
    const std::string first = expected.begin()->first;
    EXPECT_FALSE(at::equal(NewAdapters(golden, 8, 0, group).at(first), expected.at(first)));
  });
}

TEST(NewAdapters, BeginAtTheModelItselfAndAreSavedAsAFolderThatIsTrainedOn) {
  const GoldenRun golden = ReadGoldenRun("llama");
  const std::string folder = FreshFolder("new_adapters");
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    TrainableModelOptions options = golden.Fp32(3, true);
    const double whole = Accumulate(*LoadOrDie(golden.folder, options, group, ledger), golden.sequences, 4);
    options.model.lora = LoraOptions{.r = 3, .alpha = 6};
    const auto model = LoadOrDie(golden.folder, options, group, ledger);
    EXPECT_EQ(Accumulate(*model, golden.sequences, 4), whole);
    for (int step = 0; step < 5; ++step) {
      model->Step(10 * golden.learning_rate, 1);
      Accumulate(*model, golden.sequences, 4);
    }
    const double last = Accumulate(*model, golden.sequences, 4);
    EXPECT_LT(last, 0.99 * whole);
    ASSERT_TRUE(model->Save(folder).ok());
    EXPECT_EQ(Accumulate(*LoadOrDie(folder, options, group, ledger), golden.sequences, 4), last);
    options.model.lora->r = 4;
    const absl::Status status = TrainableModel::Load(folder, options, &group, &ledger).status();
    EXPECT_NE(status.message().find("actor.lora.r is 4 and not 3"), std::string::npos) << status;
  });
}

}  // namespace
}  // namespace quartet
