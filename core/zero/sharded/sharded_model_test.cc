#include "core/zero/sharded/sharded_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "core/comm/testing/rank_threads.h"
#include "core/hardware/meta_device.h"
#include "core/model/initialize.h"
#include "core/safetensors/reader.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

ModelConfig TinyConfig(int64_t layers = 3, bool tied = false) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 97;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 12;
  config.max_position_embeddings = 128;
  config.tie_word_embeddings = tied;
  return config;
}

// A fresh folder with a random model.
std::string WriteModel(const std::string& name, const ModelConfig& config, Dtype dtype = Dtype::kF32,
                       HeadKind head = HeadKind::kVocabulary) {
  const fs::path folder = fs::path(testing::TempDir()) / ("sharded_model_test_" + name);
  fs::remove_all(folder);
  absl::Status status = WriteRandomModel(config, head, 7, dtype, folder.string());
  EXPECT_TRUE(status.ok()) << status;
  return folder.string();
}

PackedSequences SomeSequences() {
  PackedSequences batch;
  batch.ids_T = at::arange(0, 30, at::kLong) * 31 % 97;
  batch.cu_seqlens = {0, 11, 12, 30};
  return batch;
}

std::unique_ptr<ShardedModel> LoadShardedOrDie(const std::string& folder, const ShardedModelOptions& options,
                                               ProcessGroup& group, Ledger& ledger) {
  auto model = ShardedModel::Load(folder, options, &group, &ledger);
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  return *std::move(model);
}

at::Tensor ReadWhole(const CheckpointReader& reader, const std::string& name) {
  const TensorInfo& info = reader.tensors().at(name);
  at::Tensor tensor = at::empty(info.shape, info.dtype == Dtype::kF32 ? at::kFloat : at::kBFloat16);
  EXPECT_TRUE(reader.ReadRange(name, 0, tensor.numel(), tensor.mutable_data_ptr()).ok());
  return tensor;
}

TEST(ShardedModel, GathersWhatTheFileHoldsAtEveryWorldSizeAndStage) {
  const std::string folder = WriteModel("gathers", TinyConfig());
  auto reader = *CheckpointReader::Open(folder);
  for (int size : {1, 2, 3, 4}) {
    for (int stage : {0, 2, 3}) {
      for (bool trainable : {false, true}) {
        for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          RunRanks(size, [&](ProcessGroup& group) {
            Ledger ledger;
            ShardedModelOptions options;
            options.zero_stage = stage;
            options.trainable = trainable;
            options.compute_dtype = dtype;
            auto model = LoadShardedOrDie(folder, options, group, ledger);
            const auto& groups = model->layout().groups;
            for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
              GatheredGroup gathered = model->Gather(g, g + 1 < static_cast<int>(groups.size()) ? g + 1 : -1);
              for (size_t p = 0; p < groups[g].parameters.size(); ++p) {
                const at::Tensor expected = ReadWhole(*reader, groups[g].parameters[p].name).to(dtype);
                ASSERT_TRUE(at::equal(gathered.tensors()[p], expected))
                    << groups[g].parameters[p].name << " on rank " << group.rank() << " of " << size << ", stage "
                    << stage;
              }
            }
          });
        }
      }
    }
  }
}

TEST(ShardedModel, AShareHoldsItsRowsAndColumnsOfWhatTheFileHolds) {
  for (const bool tied : {false, true}) {
    ModelConfig config = TinyConfig(1, tied);
    config.num_key_value_heads = 4;
    config.block.qkv_bias = config.block.o_bias = config.block.mlp_bias = true;
    config.intermediate_size = 1 << 16;  // a matrix comes in several reads
    const std::string folder = WriteModel("shares", config);
    auto reader = *CheckpointReader::Open(folder);
    for (const int size : {1, 2, 4}) {
      for (int rank = 0; rank < size; ++rank) {
        Ledger ledger;
        const auto alone = MakeProcessGroup(nullptr, ProcessGroupOptions());
        ASSERT_TRUE(alone.ok());
        ShardedModelOptions options;
        options.zero_stage = 0;
        options.compute_dtype = at::kFloat;
        options.tensor_parallel = {rank, size};
        auto model = LoadShardedOrDie(folder, options, **alone, ledger);
        EXPECT_EQ(model->config().num_attention_heads, 4 / size);
        const auto& groups = model->layout().groups;
        for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
          const GatheredGroup gathered = model->Gather(g);
          for (size_t p = 0; p < groups[g].parameters.size(); ++p) {
            const ParameterSpec& parameter = groups[g].parameters[p];
            at::Tensor expected = ReadWhole(*reader, parameter.name);
            if (parameter.slice.has_value()) {
              const int dimension = parameter.slice->dimension;
              expected = expected.narrow(dimension, parameter.slice->begin, parameter.shape[dimension]);
            }
            ASSERT_TRUE(at::equal(gathered.tensors()[p], expected)) << parameter.name << " of " << rank << "/" << size;
          }
        }
        // What every rank has whole is small; padding is less than 256 bytes a tensor.
        EXPECT_LT(ledger.current(MemoryCategory::kParameters),
                  MakeParameterLayout(config, HeadKind::kVocabulary).numel() * 4 / size * 11 / 10);
      }
    }
  }
}

TEST(ShardedModel, OnlyAFrozenModelIsDividedInsideItsMatrices) {
  const std::string folder = WriteModel("share_refused", TinyConfig());
  const auto alone = MakeProcessGroup(nullptr, ProcessGroupOptions());
  ASSERT_TRUE(alone.ok());
  Ledger ledger;
  ShardedModelOptions options;
  options.tensor_parallel = {0, 2};
  EXPECT_EQ(ShardedModel::Load(folder, options, alone->get(), &ledger).status().message(),
            "tensor_parallel needs a frozen model at zero_stage 0; zero_stage is 3");
  options.zero_stage = 0;
  options.trainable = true;
  EXPECT_EQ(ShardedModel::Load(folder, options, alone->get(), &ledger).status().message(),
            "tensor_parallel needs a frozen model at zero_stage 0; the model is trainable");
}

TEST(ShardedModel, ForwardIsTheSameToTheBitAtEveryWorldSizeAndStage) {
  for (bool tied : {false, true}) {
    const std::string folder = WriteModel("forward", TinyConfig(3, tied));
    at::Tensor expected;
    for (int size : {1, 2, 3}) {
      for (int stage : {3, 2, 0}) {
        RunRanks(size, [&](ProcessGroup& group) {
          Ledger ledger;
          ShardedModelOptions options;
          options.zero_stage = stage;
          options.compute_dtype = at::kFloat;
          auto model = LoadShardedOrDie(folder, options, group, ledger);
          int calls = 0;
          model->Forward(SomeSequences(), [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
            ++calls;
            EXPECT_FALSE(hidden_TD.requires_grad());
            const at::Tensor logits = hidden_TD.matmul(head_weight.t());
            if (!expected.defined()) expected = logits.clone();
            EXPECT_TRUE(at::equal(logits, expected)) << "rank " << group.rank() << " of " << size;
          });
          EXPECT_EQ(calls, 1);
          EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
        });
      }
    }
    ASSERT_TRUE(expected.defined());
    EXPECT_GT(expected.std().item<double>(), 0);
  }
}

TEST(ShardedModel, ARankWithoutTokensTakesPartInTheGathers) {
  const std::string folder = WriteModel("empty", TinyConfig());
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadShardedOrDie(folder, {}, group, ledger);
    PackedSequences batch = SomeSequences();
    if (group.rank() == 1) batch = {at::empty({0}, at::kLong), {}};
    int calls = 0;
    model->Forward(batch, [&](const at::Tensor&, const at::Tensor&) { ++calls; });
    EXPECT_EQ(calls, group.rank() == 0 ? 1 : 0);
  });
}

TEST(ShardedModel, GathersAtMostTwoGroupsAndAQuarterOfADeepModel) {
  const std::string folder = WriteModel("deep", TinyConfig(16));
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    ShardedModelOptions options;
    options.compute_dtype = at::kFloat;
    auto model = LoadShardedOrDie(folder, options, group, ledger);
    int64_t largest = 0;
    for (const auto& parameters : model->layout().groups) largest = std::max(largest, parameters.numel() * 4);
    model->Forward(SomeSequences(), [](const at::Tensor&, const at::Tensor&) {});
    // A group's buffer is padded by less than 256 bytes a tensor and a rank.
    EXPECT_LE(ledger.peak(MemoryCategory::kGathered), 2 * (largest + 256 * 16));
    EXPECT_GT(ledger.peak(MemoryCategory::kGathered), largest) << "the next group is not gathered ahead";
    EXPECT_LT(ledger.peak(MemoryCategory::kGathered), model->layout().numel() * 4 / 4);
    EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
    // Half of the parameters are resident, and the padding.
    EXPECT_LT(ledger.current(MemoryCategory::kParameters), model->layout().numel() * 4 * 0.55);
  });
}

TEST(ShardedModel, AnExceptionOfTheCallerLeavesNothingGathered) {
  const std::string folder = WriteModel("throws", TinyConfig());
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadShardedOrDie(folder, {}, group, ledger);
    auto refuse = [](const at::Tensor&, const at::Tensor&) { throw std::runtime_error("no"); };
    EXPECT_THROW(model->Forward(SomeSequences(), refuse), std::runtime_error);
    EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
    int calls = 0;
    model->Forward(SomeSequences(), [&](const at::Tensor&, const at::Tensor&) { ++calls; });
    EXPECT_EQ(calls, 1);
  });
}

TEST(ShardedModel, EveryElementIsResidentOnExactlyOneRankAtStage3) {
  const std::string folder = WriteModel("pieces", TinyConfig());
  std::mutex mutex;
  std::map<std::string, std::vector<int>> owners;
  RunRanks(3, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadShardedOrDie(folder, {}, group, ledger);
    GatheredGroup first = model->Gather(0);
    std::lock_guard<std::mutex> lock(mutex);
    for (const ParameterShard& piece : model->parameter_shards()) {
      const ParameterSpec& parameter = model->layout().groups[piece.group].parameters[piece.parameter];
      auto& counts = owners[parameter.name];
      counts.resize(parameter.numel());
      for (int64_t i = 0; i < piece.count; ++i) ++counts[piece.begin + i];
      if (piece.group == 0) {
        EXPECT_TRUE(at::equal(model->shard(0).narrow(0, piece.shard_offset, piece.count),
                              first.tensors()[piece.parameter].view({-1}).narrow(0, piece.begin, piece.count)));
      }
    }
  });
  EXPECT_EQ(owners.size(), 2u + 1 + 9 * 3);
  for (const auto& [name, counts] : owners) EXPECT_THAT(counts, testing::Each(1)) << name;
}

TEST(ShardedModel, NewWeightsAreUsedOnceSwappedIn) {
  const std::string old_folder = WriteModel("swap_old", TinyConfig());
  const fs::path new_folder = fs::path(testing::TempDir()) / "sharded_model_test_swap_new";
  fs::remove_all(new_folder);
  ASSERT_TRUE(WriteRandomModel(TinyConfig(), HeadKind::kVocabulary, 8, Dtype::kF32, new_folder.string()).ok());
  for (int stage : {0, 3}) {
    RunRanks(2, [&](ProcessGroup& group) {
      Ledger ledger;
      ShardedModelOptions options;
      options.zero_stage = stage;
      options.compute_dtype = at::kFloat;
      auto model = LoadShardedOrDie(old_folder, options, group, ledger);
      auto wanted = LoadShardedOrDie(new_folder.string(), options, group, ledger);
      auto logits_of = [&](ShardedModel& which) {
        at::Tensor logits;
        which.Forward(SomeSequences(), [&](const at::Tensor& hidden_TD, const at::Tensor& head_weight) {
          logits = hidden_TD.matmul(head_weight.t());
        });
        return logits;
      };
      const at::Tensor before = logits_of(*model);
      const int64_t resident_bytes = ledger.current(MemoryCategory::kParameters);
      std::vector<at::Tensor> buffers = model->NewStagedBuffers();
      EXPECT_GT(ledger.current(MemoryCategory::kParameters), resident_bytes);
      for (const ParameterShard& piece : wanted->parameter_shards()) {
        buffers[piece.group]
            .narrow(0, piece.shard_offset, piece.count)
            .copy_(wanted->shard(piece.group).narrow(0, piece.shard_offset, piece.count));
      }
      EXPECT_TRUE(at::equal(logits_of(*model), before));
      model->SwapWeights(std::move(buffers));
      EXPECT_EQ(ledger.current(MemoryCategory::kParameters), resident_bytes);
      EXPECT_TRUE(at::equal(logits_of(*model), logits_of(*wanted)));
      EXPECT_FALSE(at::equal(logits_of(*model), before));
    });
  }
}

TEST(ShardedModel, ReadsAgainWhatItHasReadAndNothingElse) {
  const std::string folder = WriteModel("again", TinyConfig());
  RunRanks(1, [&](ProcessGroup& group) {
    Ledger ledger;
    auto model = LoadShardedOrDie(folder, {}, group, ledger);
    EXPECT_TRUE(model->ReadShards(model->NewStagedBuffers()).ok());
    const std::string file = folder + "/model.safetensors";
    fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(1));
    const absl::Status changed = model->ReadShards(model->NewStagedBuffers()).status();
    EXPECT_EQ(changed.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(changed.message()), testing::HasSubstr("have changed since they were loaded"));
  });
}

TEST(ShardedModel, OfADeviceStagesWeightsInHostMemoryAndKeepsOneSetOnTheDevice) {
  const MetaStandsFor device(at::kCUDA);
  ProcessGroupOptions alone;
  alone.device = "meta";
  const auto group = MakeProcessGroup(nullptr, alone);
  ASSERT_TRUE(group.ok()) << group.status();
  Ledger ledger;
  ShardedModelOptions options;
  options.zero_stage = 0;
  options.device = at::kMeta;
  const std::unique_ptr<ShardedModel> model =
      LoadShardedOrDie(WriteModel("staged", TinyConfig()), options, **group, ledger);
  const auto on = [&](MemoryTier tier) { return ledger.current(MemoryCategory::kParameters, tier); };
  const int64_t weights = on(MemoryTier::kDevice);
  for (const bool release : {false, true}) {
    if (release) model->ReleaseShards();
    std::vector<at::Tensor> staged = model->NewStagedBuffers();
    EXPECT_EQ(on(MemoryTier::kHost), weights);
    EXPECT_EQ(on(MemoryTier::kDevice), release ? 0 : weights);
    model->SwapWeights(std::move(staged));
    EXPECT_EQ(on(MemoryTier::kHost), 0);
    EXPECT_EQ(on(MemoryTier::kDevice), weights);
  }
  EXPECT_EQ(ledger.peak(MemoryCategory::kParameters), weights);
}

// Bytes that this process has read by system calls; -1 where the kernel does not count them.
int64_t BytesRead() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t value = -1;
  return file >> name >> value && name == "rchar:" ? value : -1;
}

TEST(ShardedModel, RanksTogetherReadTheFileOnce) {
  if (BytesRead() < 0) GTEST_SKIP() << "the kernel does not count reads";
  ModelConfig config = TinyConfig();
  config.hidden_size = 384;
  config.head_dim = 96;
  config.intermediate_size = 1024;
  const std::string folder = WriteModel("bytes", config);
  const int64_t file_bytes = fs::file_size(fs::path(folder) / "model.safetensors");
  for (int size : {1, 2, 3, 5}) {
    for (int stage : {0, 2, 3}) {
      int64_t before = 0, read = 0;
      RunRanks(size, [&](ProcessGroup& group) {
        Ledger ledger;
        ShardedModelOptions options;
        options.zero_stage = stage;
        options.trainable = true;
        group.Barrier();
        if (group.rank() == 0) before = BytesRead();
        group.Barrier();
        LoadShardedOrDie(folder, options, group, ledger);
        group.Barrier();
        if (group.rank() == 0) read = BytesRead() - before;
      });
      EXPECT_GE(read, file_bytes * 0.99) << size << " ranks, stage " << stage;
      EXPECT_LE(read, file_bytes * 1.02) << size << " ranks, stage " << stage;
    }
  }
}

// A number of KiB in /proc/self/status, in bytes.
int64_t ProcessBytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return -1;
}

// All ranks live in this process: it may grow by all shards and one read buffer a rank. One rank that held the whole
// model, even only as it is on disk, would be seen.
TEST(ShardedModel, LoadsInNoMoreMemoryThanShardsAndReadBuffers) {
  ModelConfig config = TinyConfig(2);
  config.vocab_size = 8192;
  config.hidden_size = 1024;
  config.head_dim = 256;
  config.intermediate_size = 2048;
  const std::string folder = WriteModel("memory", config, Dtype::kBF16);
  const int64_t file_bytes = fs::file_size(fs::path(folder) / "model.safetensors");
  constexpr int64_t kReadBuffer = 2 << 20, kThreadsAndSockets = 4 << 20;
  for (int size : {2, 5}) {
    const int64_t allowed = 2 * file_bytes + size * (kReadBuffer + kThreadsAndSockets);
    ASSERT_LT(allowed, 3 * file_bytes);
    int64_t before = 0, peak = 0;
    RunRanks(size, [&](ProcessGroup& group) {
      Ledger ledger;
      ShardedModelOptions options;
      options.trainable = true;  // fp32 shards of a bf16 file
      group.Barrier();
      if (group.rank() == 0) {
        before = ProcessBytes("VmRSS");
        if (!(std::ofstream("/proc/self/clear_refs") << 5).flush()) before = -1;  // resets the peak
      }
      group.Barrier();
      auto model = LoadShardedOrDie(folder, options, group, ledger);
      group.Barrier();
      if (group.rank() == 0) peak = ProcessBytes("VmHWM");
      group.Barrier();
    });
    if (before < 0) GTEST_SKIP() << "the kernel does not let a process reset its peak";
    EXPECT_LE(peak - before, allowed) << size << " ranks";
  }
}

absl::Status LoadStatus(const std::string& folder, const ShardedModelOptions& options = {}) {
  absl::Status status;
  RunRanks(1, [&](ProcessGroup& group) {
    Ledger ledger;
    status = ShardedModel::Load(folder, options, &group, &ledger).status();
  });
  return status;
}

TEST(ShardedModel, ATruncatedFileIsAnErrorOnEveryRank) {
  const std::string folder = WriteModel("truncated", TinyConfig());
  const fs::path file = fs::path(folder) / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1000);
  std::vector<absl::Status> statuses(2);
  RunRanks(2, [&](ProcessGroup& group) {
    Ledger ledger;
    statuses[group.rank()] = ShardedModel::Load(folder, {}, &group, &ledger).status();
    EXPECT_EQ(ledger.current(MemoryCategory::kParameters), 0);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("model.safetensors"));
  }
}

TEST(ShardedModel, NamesTheTensorThatIsMissing) {
  const std::string folder = WriteModel("missing", TinyConfig(3));
  // The folder of a shallower model under the configuration of a deeper one.
  const std::string shallow = WriteModel("shallow", TinyConfig(2));
  fs::copy_file(fs::path(shallow) / "model.safetensors", fs::path(folder) / "model.safetensors",
                fs::copy_options::overwrite_existing);
  const absl::Status status = LoadStatus(folder);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("model.layers.2."));
}

TEST(ShardedModel, NamesBothShapesOfATensorThatDoesNotFit) {
  const std::string folder = WriteModel("shape", TinyConfig());
  ModelConfig other = TinyConfig();
  other.vocab_size = 96;
  const std::string narrow = WriteModel("shape_other", other);
  fs::copy_file(fs::path(narrow) / "model.safetensors", fs::path(folder) / "model.safetensors",
                fs::copy_options::overwrite_existing);
  const absl::Status status = LoadStatus(folder);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("[96, 48]"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("[97, 48]"));
}

TEST(ShardedModel, RefusesStagesAndTypesThatItDoesNotHave) {
  const std::string folder = WriteModel("options", TinyConfig());
  ShardedModelOptions options;
  options.zero_stage = 1;
  EXPECT_THAT(std::string(LoadStatus(folder, options).message()), testing::HasSubstr("allowed: 0, 2, 3"));
  options.zero_stage = 3;
  options.compute_dtype = at::kHalf;
  EXPECT_THAT(std::string(LoadStatus(folder, options).message()), testing::HasSubstr("allowed: bf16, fp32"));
}

TEST(ShardedModel, ReadsAScalarHeadByItsName) {
  const std::string folder = WriteModel("named_head", TinyConfig(1), Dtype::kF32, HeadKind::kScalar);
  ShardedModelOptions options;
  options.head = HeadKind::kScalar;
  options.compute_dtype = at::kFloat;
  EXPECT_TRUE(LoadStatus(folder, options).ok()) << LoadStatus(folder, options);
  options.scalar_head = "value_head";
  EXPECT_THAT(std::string(LoadStatus(folder, options).message()), testing::HasSubstr("value_head.weight is missing"));
}

TEST(ShardedModel, DrawsNoHeadWhereTheFolderSaysThatItHasOne) {
  ModelConfig config = TinyConfig(1);
  config.scalar_head = "value_head";
  const std::string folder = WriteModel("lost_head", config, Dtype::kF32, HeadKind::kScalar);
  ShardedModelOptions options;
  options.head = HeadKind::kScalar;
  options.compute_dtype = at::kFloat;
  options.initialize_missing_head = true;
  EXPECT_TRUE(LoadStatus(folder, options).ok()) << LoadStatus(folder, options);
  const std::string headless = WriteModel("lost_head_weights", config);
  fs::copy_file(fs::path(headless) / "model.safetensors", fs::path(folder) / "model.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(std::string(LoadStatus(folder, options).message()), testing::HasSubstr("value_head.weight is missing"));
}

TEST(ShardedModel, RefusesACriticWhereALanguageModelIsWanted) {
  ModelConfig config = TinyConfig(1);
  config.tie_word_embeddings = true;  // all tensors of a language model are there
  const std::string folder = WriteModel("critic", config, Dtype::kF32, HeadKind::kScalar);
  const absl::Status status = LoadStatus(folder);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr(folder + "/config.json: architectures"),
                             testing::HasSubstr("scalar head"), testing::HasSubstr("ForCausalLM")));
}

TEST(ShardedModel, DrawsAMissingScalarHeadAlikeAtEveryWorldSizeOrRefuses) {
  ModelConfig config = TinyConfig(1);
  config.hidden_size = 1024;
  config.head_dim = 256;
  config.intermediate_size = 8;
  const std::string folder = WriteModel("score", config);
  ShardedModelOptions options;
  options.head = HeadKind::kScalar;
  options.compute_dtype = at::kFloat;
  EXPECT_THAT(std::string(LoadStatus(folder, options).message()), testing::HasSubstr("score.weight is missing"));

  options.initialize_missing_head = true;
  options.seed = 5;
  at::Tensor expected;
  for (int size : {1, 3}) {
    RunRanks(size, [&](ProcessGroup& group) {
      Ledger ledger;
      auto model = LoadShardedOrDie(folder, options, group, ledger);
      model->Forward(SomeSequences(), [&](const at::Tensor&, const at::Tensor& head_weight) {
        if (group.rank() != 0) return;
        if (!expected.defined()) expected = head_weight.clone();
        EXPECT_TRUE(at::equal(head_weight, expected));
      });
    });
  }
  ASSERT_EQ(expected.sizes(), (std::vector<int64_t>{1, 1024}));
  // Mean and deviation of 1024 draws within four standard errors.
  EXPECT_NEAR(expected.mean().item<double>() * std::sqrt(1025.0), 0, 4 / 32.0);
  EXPECT_NEAR(expected.std().item<double>() * std::sqrt(1025.0), 1, 4 / 45.0);
}

}  // namespace
}  // namespace quartet
