#include "core/zero/state/training_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "core/base/fail_point.h"
#include "core/checkpoint/state_folder.h"
#include "core/comm/agreed_error.h"
#include "core/comm/testing/rank_threads.h"
#include "core/model/initialize.h"
#include "core/model/lora.h"
#include "core/safetensors/writer.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Large enough that headers and manifests are little beside it.
ModelConfig SmallConfig(bool tied = false) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 2003;
  config.hidden_size = 96;
  config.intermediate_size = 160;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 24;
  config.max_position_embeddings = 128;
  config.tie_word_embeddings = tied;
  return config;
}

struct Arrangement {
  int ranks = 1;
  int stage = 3;
  at::ScalarType dtype = at::kFloat;
  int shard_size = 0;  // 0: all ranks
  bool offload = false;
  std::string optimizer = "adam";
};

class TrainingState : public testing::Test {
 protected:
  TrainingState() {
    root_ = fs::path(testing::TempDir()) / "training_state_test";
    fs::remove_all(root_);
    fs::create_directories(root_);
    EXPECT_TRUE(WriteRandomModel(SmallConfig(), HeadKind::kVocabulary, 7, Dtype::kF32, Path("model")).ok());
  }
  ~TrainingState() override { EXPECT_TRUE(SetFailPoints("").ok()); }

  std::string Path(const std::string& name) const { return (root_ / name).string(); }

  // Calls `body` on every rank with a model freshly loaded from `folder`.
  void OnRanks(const Arrangement& arrangement, const std::function<void(TrainableModel&, ProcessGroup&)>& body,
               const std::string& folder = "model") {
    RunRanksOfStore(arrangement.ranks, [&](KeyValueStore* store, const ProcessGroupOptions& group_options) {
      const int shard_size = arrangement.shard_size == 0 ? arrangement.ranks : arrangement.shard_size;
      auto mesh = MakeMesh(store, group_options, shard_size);
      if (!mesh.ok()) throw std::runtime_error(mesh.status().ToString());
      Ledger ledger;
      TrainableModelOptions options;
      options.model.adam_offload = arrangement.offload;
      options.model.zero_stage = arrangement.stage;
      options.model.compute_dtype = arrangement.dtype;
      TrainerConfig trainer;
      trainer.set_optim(arrangement.optimizer);
      trainer.set_weight_decay(0.1);
      options.optimizer = MakeOptimizer(trainer);
      auto model = TrainableModel::Load(Path(folder), options, mesh->get(), &ledger);
      if (!model.ok()) throw std::runtime_error(model.status().ToString());
      body(**model, (*mesh)->world());
    });
  }

  static void Train(TrainableModel& model, int steps) {
    for (int step = 0; step < steps; ++step) {
      PackedSequences batch;
      const int64_t salt = 100 * model.steps() + model.model().process_group().rank();
      batch.ids_T = at::tensor({salt + 1, salt + 2, salt + 70, salt + 3, salt + 9}, at::TensorOptions(at::kLong));
      batch.cu_seqlens = {0, 5};
      model.ForwardBackward(batch, [](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
        return hidden_TD.matmul(head_VD.t()).to(at::kFloat).square().mean();
      });
      ASSERT_FALSE(model.Step(1e-3, 1).skipped);
    }
  }

  // Everything that a state holds, by kind and parameter.
  std::map<std::string, std::vector<float>> Everything(const std::string& name) {
    std::map<std::string, std::vector<float>> values;
    auto reader = StateReader::Open(Path(name));
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return values;
    const StateManifest& manifest = (*reader)->manifest();
    for (size_t k = 0; k < manifest.kinds.size(); ++k) {
      for (size_t p = 0; p < manifest.parameters.size(); ++p) {
        auto& part = values[manifest.kinds[k] + "." + manifest.parameters[p].name];
        part.resize(manifest.parameters[p].numel());
        EXPECT_TRUE((*reader)->Read(k, p, 0, part.size(), part.data()).ok());
      }
    }
    return values;
  }

  fs::path root_;
};

TEST_F(TrainingState, LoadsAtAnyOtherWorldSizeStageAndComputeTypeBitForBit) {
  OnRanks({.ranks = 1, .dtype = at::kBFloat16}, [&](TrainableModel& model, ProcessGroup&) {
    Train(model, 3);
    const auto saved = SaveTrainingState(model, Path("0"));
    ASSERT_TRUE(saved.ok()) << saved.status();
  });
  const auto expected = Everything("0");
  ASSERT_EQ(expected.size(), 3 * (2 + 3 * 9 + 1));
  EXPECT_NE(expected.at("exp_avg_sq.lm_head.weight")[0], 0);
  const std::vector<Arrangement> chain = {{2, 3, at::kBFloat16},
                                          {3, 3, at::kFloat},
                                          {3, 0, at::kBFloat16},
                                          {4, 2, at::kFloat},
                                          {5, 3, at::kFloat},
                                          {2, 0, at::kFloat},
                                          {2, 2, at::kBFloat16},
                                          {1, 0, at::kFloat},
                                          {1, 3, at::kBFloat16},
                                          {4, 3, at::kBFloat16, /*shard_size=*/2},
                                          {6, 3, at::kFloat, /*shard_size=*/2},
                                          {4, 2, at::kFloat, /*shard_size=*/1},
                                          {3, 3, at::kBFloat16, 0, /*offload=*/true},
                                          {4, 2, at::kBFloat16, /*shard_size=*/2, /*offload=*/true},
                                          {1, 3, at::kFloat}};
  int saves = 0;
  for (const Arrangement& arrangement : chain) {
    SCOPED_TRACE(testing::Message() << arrangement.ranks << " ranks, stage " << arrangement.stage);
    OnRanks(arrangement, [&](TrainableModel& model, ProcessGroup&) {
      const absl::Status loaded = LoadTrainingState(model, Path(std::to_string(saves)));
      ASSERT_TRUE(loaded.ok()) << loaded;
      EXPECT_EQ(model.steps(), 3);
      const auto saved = SaveTrainingState(model, Path(std::to_string(saves + 1)));
      ASSERT_TRUE(saved.ok()) << saved.status();
    });
    ++saves;
    EXPECT_EQ(Everything(std::to_string(saves)), expected);
    EXPECT_TRUE(VerifyStateFolder(Path(std::to_string(saves))).ok());
  }
}

TEST_F(TrainingState, GoesOnAsIfTrainingHadNeverStopped) {
  for (const Arrangement& arrangement : {Arrangement{1, 3, at::kFloat}, Arrangement{2, 3, at::kBFloat16},
                                         Arrangement{2, 0, at::kBFloat16}, Arrangement{3, 2, at::kBFloat16}}) {
    fs::remove_all(root_ / "half");
    fs::remove_all(root_ / "whole");
    fs::remove_all(root_ / "resumed");
    OnRanks(arrangement, [&](TrainableModel& model, ProcessGroup&) {
      Train(model, 2);
      ASSERT_TRUE(SaveTrainingState(model, Path("half")).ok());
      Train(model, 2);
      ASSERT_TRUE(SaveTrainingState(model, Path("whole")).ok());
    });
    OnRanks(arrangement, [&](TrainableModel& model, ProcessGroup&) {
      ASSERT_TRUE(LoadTrainingState(model, Path("half")).ok());
      Train(model, 2);
      ASSERT_TRUE(SaveTrainingState(model, Path("resumed")).ok());
    });
    EXPECT_EQ(Everything("resumed"), Everything("whole"));
    EXPECT_NE(Everything("resumed"), Everything("half"));
  }
}

// Bytes that the system has read for this process, from files.
int64_t BytesRead() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  file >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

TEST_F(TrainingState, IsWrittenOnceAndReadOnceOverAllRanks) {
  int64_t parameters = 0;
  for (const auto& [ranks, shard_size] : {std::pair(1, 1), {2, 2}, {3, 3}, {5, 5}, {4, 2}}) {
    for (const int stage : {0, 3}) {
      if (stage == 0 && shard_size < ranks) continue;
      const std::string folder =
          Path("state" + std::to_string(ranks) + std::to_string(shard_size) + std::to_string(stage));
      std::mutex mutex;
      int64_t before = 0, read = 0, written = 0;
      OnRanks({ranks, stage, at::kFloat, shard_size}, [&](TrainableModel& model, ProcessGroup& group) {
        const auto saved = SaveTrainingState(model, folder);
        ASSERT_TRUE(saved.ok()) << saved.status();
        group.Barrier();
        if (group.rank() == 0) before = BytesRead();
        group.Barrier();
        ASSERT_TRUE(LoadTrainingState(model, folder).ok());
        group.Barrier();
        if (group.rank() == 0) {
          read = BytesRead() - before;
          written = saved->bytes;
          parameters = model.model().layout().numel();
        }
      });
      EXPECT_GE(written, 12 * parameters);
      EXPECT_LE(written, 1.01 * 12 * parameters);
      EXPECT_GE(read, 12 * parameters);
      EXPECT_LE(read, 1.02 * written) << ranks << " ranks, stage " << stage;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto bytes = static_cast<double>(fs::file_size(fs::path(folder) / StateFileName(rank, ranks)));
        EXPECT_NEAR(bytes * ranks / static_cast<double>(written), 1, 0.05) << "every rank writes its part";
      }
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

// All ranks live in this process; none may hold more than a little beside its shard while it saves or loads.
TEST_F(TrainingState, StreamsStraightFromTheShardsAndIntoThem) {
  ModelConfig config = SmallConfig();
  config.vocab_size = 4096;
  config.hidden_size = 768;
  config.head_dim = 192;
  config.intermediate_size = 768;
  ASSERT_TRUE(WriteRandomModel(config, HeadKind::kVocabulary, 7, Dtype::kBF16, Path("larger")).ok());
  constexpr int kRanks = 2;
  constexpr int64_t kBesideTheShard = 5 << 20;
  OnRanks(
      {.ranks = kRanks},
      [&](TrainableModel& model, ProcessGroup& group) {
        ASSERT_GT(12 * model.model().layout().numel() / kRanks, 8 * kRanks * kBesideTheShard);
        Train(model, 1);  // touches all memory
        const auto growth_of = [&](const std::function<void()>& work) {
          int64_t before = 0;
          group.Barrier();
          if (group.rank() == 0) {
            before = ProcessBytes("VmRSS");
            EXPECT_TRUE((std::ofstream("/proc/self/clear_refs") << 5).flush()) << "cannot reset the peak";
          }
          group.Barrier();
          work();
          group.Barrier();
          return group.rank() == 0 ? ProcessBytes("VmHWM") - before : 0;
        };
        EXPECT_LE(growth_of([&] { ASSERT_TRUE(SaveTrainingState(model, Path("state")).ok()); }),
                  kRanks * kBesideTheShard);
        EXPECT_LE(growth_of([&] { ASSERT_TRUE(LoadTrainingState(model, Path("state")).ok()); }),
                  kRanks * kBesideTheShard);
      },
      "larger");
}

// An error of one rank is all ranks' error; nothing is left, and the next save works.
void ExpectFailureAndRecovery(TrainableModel& model, ProcessGroup& group, const std::string& folder,
                              absl::StatusCode code, const std::string& message, const std::function<void()>& repair) {
  const absl::Status status = SaveTrainingState(model, folder).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_TRUE(IsAgreed(status)) << status;
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_FALSE(fs::exists(folder + ".partial"));
  group.Barrier();
  if (group.rank() == 0) repair();
  group.Barrier();
  const auto again = SaveTrainingState(model, folder);
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(TrainingState, LeavesNothingAndTheRanksInStepWhereOneOfThemFails) {
  ASSERT_TRUE(SetFailPoints("training_state.write=error@2").ok());
  OnRanks({.ranks = 3}, [&](TrainableModel& model, ProcessGroup& group) {
    ExpectFailureAndRecovery(model, group, Path("state"), absl::StatusCode::kInternal, "training_state.write", [] {});
  });
}

TEST_F(TrainingState, NamesAFullDisk) {
  // A limit on the size of files stands for it.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  OnRanks({.ranks = 2}, [&](TrainableModel& model, ProcessGroup& group) {
    if (group.rank() == 0) {
      rlimit small = before;
      small.rlim_cur = 1 << 20;
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    }
    group.Barrier();
    ExpectFailureAndRecovery(model, group, Path("state"), absl::StatusCode::kResourceExhausted, Path("state"),
                             [&] { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0); });
  });
}

TEST_F(TrainingState, ReplacesWhatAKilledSaveLeft) {
  fs::create_directories(root_ / "state.partial");
  std::ofstream(root_ / "state.partial" / "part-00007-of-00008.safetensors") << "torn";
  OnRanks({.ranks = 2}, [&](TrainableModel& model, ProcessGroup&) {
    ASSERT_TRUE(SaveTrainingState(model, Path("state")).ok());
    const absl::Status again = SaveTrainingState(model, Path("state")).status();
    EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists) << again;
  });
  EXPECT_FALSE(fs::exists(root_ / "state.partial"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root_ / "state"), fs::directory_iterator()), 3);
}

// Wherever the damage is, every rank refuses, also those that did not read it.
TEST_F(TrainingState, IsRefusedByAllRanksWhereAByteOfOneFileChanged) {
  OnRanks({.ranks = 2},
          [&](TrainableModel& model, ProcessGroup&) { ASSERT_TRUE(SaveTrainingState(model, Path("state")).ok()); });
  const fs::path damaged = root_ / "state" / StateFileName(1, 2);
  std::fstream file(damaged, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(damaged)) - 1000);
  file.put('\x55');
  file.close();
  OnRanks({.ranks = 3}, [&](TrainableModel& model, ProcessGroup&) {
    const absl::Status status = LoadTrainingState(model, Path("state"));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(damaged.string()), HasSubstr("exp_avg_sq.")));
  });
  fs::resize_file(damaged, fs::file_size(damaged) - 1);
  OnRanks({.ranks = 3}, [&](TrainableModel& model, ProcessGroup&) {
    const absl::Status status = LoadTrainingState(model, Path("state"));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(damaged.string()), HasSubstr("cut short")));
  });
}

// Over the model of this test; B is not zero.
void WriteAdapters(const std::string& folder, const std::string& base) {
  fs::create_directories(folder);
  std::ofstream(folder + "/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["v_proj", "down_proj"],)"
      << R"( "base_model_name_or_path": ")" << base << "\"}";
  const ModelConfig config = *ReadModelConfig(folder);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const ParameterGroup& group :
       MakeLoraLayout(config, MakeParameterLayout(config, HeadKind::kVocabulary)).groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      entries.push_back({parameter.name, Dtype::kF32, parameter.shape});
    }
  }
  const auto writer = *SafetensorsWriter::Create(folder + "/adapter_model.safetensors", entries);
  uint32_t state = 1;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::vector<float> values(entries[i].shape[0] * entries[i].shape[1]);
    for (float& value : values)
      value = static_cast<float>((state = state * 1664525 + 1013904223) >> 8) * 0x1p-25f - 0.25f;
    ASSERT_TRUE(writer->Write(static_cast<int>(i), 0, values.data(), values.size() * sizeof(float)).ok());
  }
  ASSERT_TRUE(writer->Close().ok());
}

TEST_F(TrainingState, OfAdaptersIsTheirsAloneAndLoadsAtAnyOtherWorldSizeBitForBit) {
  WriteAdapters(Path("adapters"), Path("model"));
  OnRanks(
      {.ranks = 2, .stage = 3},
      [&](TrainableModel& model, ProcessGroup&) {
        Train(model, 3);
        const auto saved = SaveTrainingState(model, Path("0"));
        ASSERT_TRUE(saved.ok()) << saved.status();
      },
      "adapters");
  const auto expected = Everything("0");
  ASSERT_EQ(expected.size(), 3 * 3 * 2 * 2);  // kinds, blocks, products, factors
  const std::vector<Arrangement> chain = {{3, 3, at::kFloat},
                                          {3, 2, at::kBFloat16},
                                          {2, 0, at::kFloat},
                                          {4, 3, at::kBFloat16, /*shard_size=*/2},
                                          {2, 3, at::kFloat, /*shard_size=*/0, /*offload=*/true},
                                          {1, 0, at::kFloat}};
  for (size_t i = 0; i < chain.size(); ++i) {
    OnRanks(
        chain[i],
        [&](TrainableModel& model, ProcessGroup&) {
          const absl::Status loaded = LoadTrainingState(model, Path(std::to_string(i)));
          ASSERT_TRUE(loaded.ok()) << loaded;
          EXPECT_EQ(model.steps(), 3);
          ASSERT_TRUE(SaveTrainingState(model, Path(std::to_string(i + 1))).ok());
        },
        "adapters");
    EXPECT_EQ(Everything(std::to_string(i + 1)), expected) << "arrangement " << i;
  }
  OnRanks({.ranks = 1}, [&](TrainableModel& model, ProcessGroup&) {
    const absl::Status status = LoadTrainingState(model, Path("0"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("which is of adapters: set lora.r to 3"));
  });
}

TEST_F(TrainingState, OfAdaptersIsOfTheWeightsOfTheirModel) {
  WriteAdapters(Path("adapters"), Path("model"));
  const Arrangement two = {.ranks = 2, .stage = 3};
  const auto save = [&](TrainableModel& model, ProcessGroup&) {
    ASSERT_TRUE(SaveTrainingState(model, Path("0")).ok());
  };
  OnRanks(two, save, "adapters");
  fs::rename(Path("model"), Path("before"));
  const ModelConfig config = *ReadModelConfig(Path("before"));
  ASSERT_TRUE(WriteRandomModel(config, HeadKind::kVocabulary, 1234, Dtype::kF32, Path("model")).ok());
  OnRanks(
      two,
      [&](TrainableModel& model, ProcessGroup&) {
        EXPECT_THAT(std::string(LoadTrainingState(model, Path("0")).message()),
                    AllOf(HasSubstr(Path("0")), HasSubstr("another model than is in " + Path("model"))));
      },
      "adapters");
  WriteAdapters(Path("moved"), Path("before"));
  OnRanks(
      two, [&](TrainableModel& model, ProcessGroup&) { EXPECT_TRUE(LoadTrainingState(model, Path("0")).ok()); },
      "moved");
}

TEST_F(TrainingState, OfAdaptersGoesOnAsIfTrainingHadNeverStopped) {
  WriteAdapters(Path("adapters"), Path("model"));
  // What two ranks saved three go on with, and with the same bits as three that had it from three.
  const auto go_on = [&](const std::string& from, const std::string& to) {
    OnRanks(
        {.ranks = 3, .stage = 3, .dtype = at::kBFloat16},
        [&](TrainableModel& model, ProcessGroup&) {
          ASSERT_TRUE(LoadTrainingState(model, Path(from)).ok());
          Train(model, 2);
          ASSERT_TRUE(SaveTrainingState(model, Path(to)).ok());
        },
        "adapters");
  };
  OnRanks(
      {.ranks = 2, .stage = 3, .dtype = at::kBFloat16},
      [&](TrainableModel& model, ProcessGroup&) {
        Train(model, 2);
        ASSERT_TRUE(SaveTrainingState(model, Path("of_two")).ok());
      },
      "adapters");
  OnRanks(
      {.ranks = 3, .stage = 3, .dtype = at::kBFloat16},
      [&](TrainableModel& model, ProcessGroup&) {
        ASSERT_TRUE(LoadTrainingState(model, Path("of_two")).ok());
        ASSERT_TRUE(SaveTrainingState(model, Path("of_three")).ok());
        Train(model, 2);
        ASSERT_TRUE(SaveTrainingState(model, Path("whole")).ok());
      },
      "adapters");
  go_on("of_two", "resumed");
  go_on("of_three", "again");
  EXPECT_EQ(Everything("resumed"), Everything("whole"));
  EXPECT_EQ(Everything("again"), Everything("whole"));
  EXPECT_NE(Everything("whole"), Everything("of_two"));
}

TEST_F(TrainingState, OfSgdGoesOnAsIfTrainingHadNeverStopped) {
  const Arrangement two{.ranks = 2, .dtype = at::kBFloat16, .optimizer = "sgd"};
  OnRanks(two, [&](TrainableModel& model, ProcessGroup&) {
    Train(model, 2);
    ASSERT_TRUE(SaveTrainingState(model, Path("half")).ok());
    Train(model, 2);
    ASSERT_TRUE(SaveTrainingState(model, Path("whole")).ok());
  });
  OnRanks(two, [&](TrainableModel& model, ProcessGroup&) {
    ASSERT_TRUE(LoadTrainingState(model, Path("half")).ok());
    Train(model, 2);
    ASSERT_TRUE(SaveTrainingState(model, Path("resumed")).ok());
  });
  const auto resumed = Everything("resumed");
  EXPECT_EQ(resumed, Everything("whole"));
  EXPECT_EQ(resumed.size(), 2 * (2 + 3 * 9 + 1));
  EXPECT_NE(resumed.at("momentum_buffer.lm_head.weight")[0], 0);
}

TEST_F(TrainingState, OfAnotherOptimizerIsRefusedByTheNamesOfBoth) {
  for (const auto& [before, after, kinds] : {std::tuple("adam", "sgd", "master, exp_avg, exp_avg_sq"),
                                             std::tuple("sgd", "adam", "master, momentum_buffer")}) {
    fs::remove_all(root_ / "state");
    OnRanks({.optimizer = before},
            [&](TrainableModel& model, ProcessGroup&) { ASSERT_TRUE(SaveTrainingState(model, Path("state")).ok()); });
    OnRanks({.ranks = 2, .optimizer = after}, [&, before = before, after = after, kinds = kinds](TrainableModel& model,
                                                                                                 ProcessGroup&) {
      const absl::Status status = LoadTrainingState(model, Path("state"));
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(std::string("actor.optim: \"") + after + "\" is not allowed"),
                        HasSubstr(Path("state") + ", which is of the optimizer \"" + before + "\""), HasSubstr(kinds)));
    });
  }
}

TEST_F(TrainingState, IsRefusedForAnotherModel) {
  OnRanks({.ranks = 1},
          [&](TrainableModel& model, ProcessGroup&) { ASSERT_TRUE(SaveTrainingState(model, Path("state")).ok()); });
  ASSERT_TRUE(WriteRandomModel(SmallConfig(/*tied=*/true), HeadKind::kVocabulary, 7, Dtype::kF32, Path("tied")).ok());
  ModelConfig wide = SmallConfig();
  wide.intermediate_size = 176;
  ASSERT_TRUE(WriteRandomModel(wide, HeadKind::kVocabulary, 7, Dtype::kF32, Path("wide")).ok());
  const auto refusal = [&](const std::string& model_folder) {
    std::string message;
    OnRanks(
        {.ranks = 1},
        [&](TrainableModel& model, ProcessGroup&) {
          const absl::Status status = LoadTrainingState(model, Path("state"));
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
          message = std::string(status.message());
        },
        model_folder);
    return message;
  };
  EXPECT_THAT(refusal("tied"), AllOf(HasSubstr(Path("state")), HasSubstr("30 parameters, the model has 29")));
  EXPECT_THAT(refusal("wide"), AllOf(HasSubstr("mlp.gate_proj.weight has shape [160, 96], the model's has [176, 96]")));
}

}  // namespace
}  // namespace quartet
