#include "policy_trainer/policy_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>

#include "core/model/parameter_layout.h"
#include "core/model/testing/padded_folder.h"
#include "core/rl/testing/token_arrays.h"
#include "core/safetensors/reader.h"
#include "core/training/engine/update_call.h"
#include "core/training/testing/golden_batch.h"
#include "core/weights/tensor_hash.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "core/model/testdata/llama";

struct Arrangement {
  int ranks;
  int stage;
  int micro_batch;
  int shard_size = 0;
  bool offload = false;  // optimizer, parameters, inputs of blocks
};
std::ostream& operator<<(std::ostream& out, const Arrangement& a) {
  return out << a.ranks << " ranks, stage " << a.stage << ", micro-batches of " << a.micro_batch << ", shard size "
             << a.shard_size << (a.offload ? ", offload" : "");
}

// Bytes held now, by tier and category.
std::map<std::pair<std::string, std::string>, int64_t> CurrentBytes(const RankInfo& info) {
  std::map<std::pair<std::string, std::string>, int64_t> bytes;
  for (const MemoryUse& use : info.memory()) bytes[{use.tier(), use.category()}] = use.current_bytes();
  return bytes;
}

class PolicyEngineTest : public ::testing::TestWithParam<Arrangement> {
 protected:
  PolicyEngineTest()
      : batch_("policy_trainer/testdata/golden.json", {kLossWeights, kOldLogProbs, kAdvantages}, GetParam().ranks,
               GetParam().micro_batch),
        config_(TestConfig(kModel, GetParam().stage)) {
    TrainerConfig* actor = config_.mutable_actor();
    actor->set_shard_size(GetParam().shard_size);
    actor->set_adam_offload(GetParam().offload);
    actor->set_offload_param(GetParam().offload);
    actor->set_activation_offload(GetParam().offload);
    SetGoldenOptimizer(golden_, actor);
  }

  void OnEveryRank(
      const std::function<void(const RankContext&, PolicyEngine&, const std::vector<TrainingSequence>&)>& body) {
    quartet::OnEveryRank<PolicyEngine>(batch_, config_.actor(), config_.seed(), body);
  }

  void ExpectLogProbs(PolicyEngine& engine, int rank, const std::vector<std::vector<float>>& expected) const {
    batch_.ExpectForward(engine, rank, golden_["temperature"], expected);
  }

  UpdateCall Call(int rank, PolicyLossConfig::Kind kind, bool own_old_log_probs = false) const {
    PolicyUpdateHeader header;
    header.mutable_loss()->set_own_old_log_probs(own_old_log_probs);
    header.set_temperature(golden_["temperature"]);
    header.set_learning_rate(golden_["learning_rate"]);
    header.mutable_loss()->set_kind(kind);
    header.mutable_loss()->set_eps_clip_low(golden_["eps_clip_low"]);
    header.mutable_loss()->set_eps_clip_high(golden_["eps_clip_high"]);
    if (kind == PolicyLossConfig::KIND_PPO) header.mutable_loss()->set_dual_clip(golden_["dual_clip"]);
    UpdateCall call = MakeUpdateCall(header);
    batch_.SetMicroBatches(rank, &call);
    return call;
  }

  const GoldenBatch batch_;
  const nlohmann::json& golden_ = batch_.golden;
  RunConfig config_;
};

TEST_P(PolicyEngineTest, UpdatesAsTorchDoesOnTransformersModel) {
  const auto& steps = golden_["steps"];
  std::mutex mutex;
  std::vector<UpdateSums> sums(steps.size());  // over ranks
  OnEveryRank([&](const RankContext& context, PolicyEngine& engine, const std::vector<TrainingSequence>& mine) {
    std::vector<std::vector<float>> before;
    for (const auto& sequence : golden_["sequences"]) before.push_back(sequence["log_probs"]);
    ExpectLogProbs(engine, context.rank, before);
    for (size_t s = 0; s < steps.size(); ++s) {
      UpdateSums part;
      ASSERT_TRUE(engine.Update(Call(context.rank, PolicyLossConfig::KIND_PPO), mine, &part).ok());
      EXPECT_FALSE(part.skipped());
      EXPECT_EQ(part.optimizer_steps(), s + 1);
      EXPECT_NEAR(part.grad_norm() / steps[s]["grad_norm"].get<double>(), 1, 1e-3);
      ExpectLogProbs(engine, context.rank, steps[s]["log_probs"]);
      std::lock_guard lock(mutex);
      sums[s].set_loss(sums[s].loss() + part.loss());
      sums[s].set_clipped(sums[s].clipped() + part.clipped());
      sums[s].set_entropy(sums[s].entropy() + part.entropy());
      sums[s].set_approx_kl(sums[s].approx_kl() + part.approx_kl());
      sums[s].set_action_tokens(sums[s].action_tokens() + part.action_tokens());
      sums[s].set_tokens(sums[s].tokens() + part.tokens());
    }
  });
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto actions = static_cast<double>(sums[s].action_tokens());
    EXPECT_EQ(sums[s].tokens(), 12 + 5 + 17 + 9);
    EXPECT_NEAR(sums[s].loss(), steps[s]["loss"].get<double>(), 1e-4);
    EXPECT_NEAR(sums[s].clipped() / actions, steps[s]["clip_fraction"].get<double>(), 1e-6);
    EXPECT_NEAR(sums[s].entropy() / actions, steps[s]["entropy"].get<double>(), 1e-4);
    EXPECT_NEAR(sums[s].approx_kl() / actions, steps[s]["approx_kl"].get<double>(), 1e-4);
  }
}

// The ratio is 1, whose gradient is that of old log-probabilities which are transformers' of the same weights.
TEST_P(PolicyEngineTest, TakesItsOwnLogProbsForTheOldOnes) {
  std::vector<double> norms;
  for (const bool own : {false, true}) {
    double norm = 0, approx_kl = 0;
    std::mutex mutex;
    OnEveryRank([&](const RankContext& context, PolicyEngine& engine, std::vector<TrainingSequence> mine) {
      for (size_t i = 0; i < mine.size(); ++i) {
        ClearArray(kOldLogProbs, &mine[i]);
        if (own) continue;
        for (const double x : golden_["sequences"][batch_.split.items[context.rank][i]]["log_probs"]) {
          MutableArray(kOldLogProbs, &mine[i]).Add(static_cast<float>(x));
        }
      }
      UpdateSums part;
      const absl::Status status = engine.Update(Call(context.rank, PolicyLossConfig::KIND_PPO, own), mine, &part);
      ASSERT_TRUE(status.ok()) << status;
      const std::lock_guard lock(mutex);
      norm = part.grad_norm();
      approx_kl += part.approx_kl();
    });
    norms.push_back(norm);
    if (own) {
      EXPECT_EQ(approx_kl, 0);
    }
  }
  EXPECT_GT(norms[0], 0);
  EXPECT_NEAR(norms[1] / norms[0], 1, 1e-3);
}

TEST_P(PolicyEngineTest, TakesTheNegativeLogProbabilityAsTheSupervisedLoss) {
  double expected = 0;
  for (const auto& sequence : golden_["sequences"]) {
    for (size_t i = 0; i < sequence["log_probs"].size(); ++i) {
      expected -= sequence["log_probs"][i].get<double>() * sequence["loss_weights"][i].get<double>();
    }
  }
  std::mutex mutex;
  double loss = 0;
  OnEveryRank([&](const RankContext& context, PolicyEngine& engine, std::vector<TrainingSequence> mine) {
    for (TrainingSequence& sequence : mine) {
      ClearArray(kOldLogProbs, &sequence);
      ClearArray(kAdvantages, &sequence);
    }
    UpdateSums part;
    ASSERT_TRUE(engine.Update(Call(context.rank, PolicyLossConfig::KIND_SFT), mine, &part).ok());
    std::lock_guard lock(mutex);
    loss += part.loss();
  });
  EXPECT_NEAR(loss, expected, 1e-4);
}

// What is published after an update is, hash by hash, what a checkpoint of the same moment holds.
// What a scorer would have to hold a second model for.
TEST_P(PolicyEngineTest, AnswersForItsModelWithoutTheAdaptersThatItTrainsToTheLastBit) {
  std::mutex mutex;
  const auto log_probs = [&](PolicyEngine& engine, int rank, const std::vector<TrainingSequence>& mine, bool without) {
    ForwardCall call;
    call.set_temperature(golden_["temperature"]);
    call.set_without_adapters(without);
    batch_.SetMicroBatches(rank, &call);
    std::vector<TokenSequence> sequences;
    for (const TrainingSequence& sequence : mine) sequences.push_back(sequence.tokens());
    std::vector<TokenValues> replies;
    const absl::Status status = engine.Forward(call, sequences, &replies);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<std::string> values;
    for (const TokenValues& reply : replies) values.push_back(reply.SerializeAsString());
    return values;
  };
  std::map<int, std::vector<std::string>> of_model;
  OnEveryRank([&](const RankContext& context, PolicyEngine& engine, const std::vector<TrainingSequence>& mine) {
    const auto values = log_probs(engine, context.rank, mine, false);
    {
      const std::lock_guard lock(mutex);
      of_model[context.rank] = values;
    }
    ForwardCall call;
    call.set_temperature(1);
    call.set_without_adapters(true);
    std::vector<TokenValues> replies;
    const absl::Status status = engine.Forward(call, {}, &replies);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a whole model is trained"));
  });
  config_.mutable_actor()->mutable_lora()->set_r(3);
  config_.mutable_actor()->mutable_lora()->set_alpha(6);
  OnEveryRank([&](const RankContext& context, PolicyEngine& engine, const std::vector<TrainingSequence>& mine) {
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(log_probs(engine, context.rank, mine, true), of_model[context.rank]) << step;
      UpdateSums part;
      ASSERT_TRUE(engine.Update(Call(context.rank, PolicyLossConfig::KIND_PPO), mine, &part).ok());
    }
    EXPECT_EQ(log_probs(engine, context.rank, mine, true), of_model[context.rank]);
    // A rank without sequences takes part alone.
    const auto learned = log_probs(engine, context.rank, mine, false);
    if (!mine.empty()) {
      EXPECT_NE(learned, of_model[context.rank]);
    }
  });
}

TEST_P(PolicyEngineTest, PublishesEachElementOfTheSavedWeightsExactlyOnce) {
  for (const char* dtype : {"fp32", "bf16"}) {
    config_.mutable_actor()->set_dtype(dtype);
    const std::string folder = NewTestFolder("policy");
    std::vector<PublishedPart> parts(GetParam().ranks);
    std::vector<std::shared_ptr<const PublishedWeights>> snapshots(GetParam().ranks);
    const ParameterLayout layout = MakeParameterLayout(*ReadModelConfig(kModel), HeadKind::kVocabulary);
    const int tensors = static_cast<int>(ManifestTensors(layout).size());
    OnEveryRank([&](const RankContext& context, PolicyEngine& engine, const std::vector<TrainingSequence>& mine) {
      UpdateSums sums;
      ASSERT_TRUE(engine.Update(Call(context.rank, PolicyLossConfig::KIND_PPO), mine, &sums).ok());
      auto snapshot = engine.Publish(5);
      ASSERT_TRUE(snapshot.ok()) << snapshot.status();
      parts[context.rank] = (*snapshot)->Describe(tensors);
      snapshots[context.rank] = *std::move(snapshot);
      SaveCall call;
      call.set_folder(folder);
      SaveSummary saved;
      const absl::Status status = engine.Save(call, &saved);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_GT(saved.bytes(), 0);
    });
    const Dtype type = std::strcmp(dtype, "bf16") == 0 ? Dtype::kBF16 : Dtype::kF32;
    const auto manifest =
        BuildManifest(5, type, layout, parts, std::vector<std::string>(GetParam().ranks, "127.0.0.1:1"));
    ASSERT_TRUE(manifest.ok()) << manifest.status();

    const auto saved = CheckpointReader::Open(folder);
    ASSERT_TRUE(saved.ok()) << saved.status();
    const auto original = CheckpointReader::Open(kModel);
    ASSERT_EQ(manifest->tensors_size(), (*saved)->tensors().size());
    int changed = 0;
    for (const TensorEntry& tensor : manifest->tensors()) {
      const TensorInfo& info = (*saved)->tensors().at(tensor.name());
      EXPECT_EQ(info.dtype, type);
      EXPECT_EQ(info.shape, std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end()));
      std::vector<char> bytes(info.bytes);
      ASSERT_TRUE((*saved)->ReadRange(tensor.name(), 0, info.numel(), bytes.data()).ok());
      EXPECT_EQ(tensor.hash(), HashElements(bytes.data(), type, 0, info.numel())) << tensor.name();
      if (type == Dtype::kF32) {
        std::vector<char> old(info.bytes);
        ASSERT_TRUE((*original)->ReadRange(tensor.name(), 0, info.numel(), old.data()).ok());
        changed += old != bytes;
      }
    }
    if (type == Dtype::kF32) {
      EXPECT_EQ(changed, manifest->tensors_size());
    }

    // The first elements, read as a receiver would.
    int found = 0;
    TensorRange range;
    range.set_count(3);
    for (const auto& snapshot : snapshots) found += snapshot->Read(range).ok();
    EXPECT_EQ(found, 1);
  }
}

TEST_P(PolicyEngineTest, SavesTheAverageOfTheWeightsBesideThem) {
  config_.mutable_actor()->set_dtype("fp32");
  config_.mutable_actor()->set_ema_decay(0.75);
  const std::string folder = NewTestFolder("policy");
  OnEveryRank([&](const RankContext& context, PolicyEngine& engine, const std::vector<TrainingSequence>& mine) {
    UpdateSums sums;
    ASSERT_TRUE(engine.Update(Call(context.rank, PolicyLossConfig::KIND_PPO), mine, &sums).ok());
    SaveCall call;
    call.set_folder(folder);
    SaveSummary summary;
    const absl::Status saved = engine.Save(call, &summary);
    ASSERT_TRUE(saved.ok()) << saved;
  });
  const auto read = [](const std::string& from) {
    const auto reader = CheckpointReader::Open(from);
    EXPECT_TRUE(reader.ok()) << reader.status();
    std::vector<float> values((*reader)->tensors().at("model.norm.weight").numel());
    EXPECT_TRUE((*reader)->ReadRange("model.norm.weight", 0, values.size(), values.data()).ok());
    return values;
  };
  const std::vector<float> before = read(kModel), after = read(folder), average = read(folder + "_ema");
  EXPECT_NE(before, after);
  for (size_t i = 0; i < average.size(); ++i) EXPECT_NEAR(average[i], 0.75 * before[i] + 0.25 * after[i], 1e-6);
}

TEST_P(PolicyEngineTest, TellsByWhatItMultipliesBf16) {
  for (const char* dtype : {"fp32", "bf16"}) {
    config_.mutable_actor()->set_dtype(dtype);
    OnEveryRank([&](const RankContext&, PolicyEngine& engine, const std::vector<TrainingSequence>&) {
      const std::string kernels = engine.Info().cpu_kernels();
      if (std::strcmp(dtype, "bf16") == 0) {
        EXPECT_THAT(kernels, testing::AnyOf("amx", "avx512_bf16", "fp32"));
      } else {
        EXPECT_EQ(kernels, "");
      }
    });
  }
}

TEST_P(PolicyEngineTest, TellsItsMemoryAndSizeAndHoldsNoGatheredParametersBetweenCalls) {
  OnEveryRank([&](const RankContext& context, PolicyEngine& engine, const std::vector<TrainingSequence>& mine) {
    UpdateSums sums;
    ASSERT_TRUE(engine.Update(Call(context.rank, PolicyLossConfig::KIND_PPO), mine, &sums).ok());
    const RankInfo info = engine.Info();
    EXPECT_EQ(info.rank(), context.rank);
    EXPECT_EQ(info.endpoint(), context.endpoint);
    EXPECT_GT(info.peak_rss_bytes(), 1 << 20);
    EXPECT_EQ(info.gathered_bytes_per_parameter(), 4);
    EXPECT_EQ(info.optimizer_steps(), 1);
    EXPECT_EQ(info.model_parameters(), MakeParameterLayout(*ReadModelConfig(kModel), HeadKind::kVocabulary).numel());
    for (const MemoryUse& use : info.memory()) {
      if (use.category() == "gathered") {
        EXPECT_EQ(use.current_bytes(), 0);
      }
    }
    const char* tier = GetParam().offload ? "host" : "device";
    EXPECT_GT(CurrentBytes(info).at({tier, "optimizer"}), 0);
  });
}

TEST_P(PolicyEngineTest, HoldsAfterAnUpdateWhatItHeldBeforeIt) {
  OnEveryRank([&](const RankContext& context, PolicyEngine& engine, const std::vector<TrainingSequence>& mine) {
    auto before = CurrentBytes(engine.Info());
    UpdateSums sums;
    ASSERT_TRUE(engine.Update(Call(context.rank, PolicyLossConfig::KIND_PPO), mine, &sums).ok());
    const RankInfo info = engine.Info();
    std::map<std::string, int64_t> totals;  // by tier
    for (const auto& [key, bytes] : CurrentBytes(info)) {
      EXPECT_EQ(bytes, before[key]) << key.first << " " << key.second;
      totals[key.first] += bytes;
    }
    for (const MemoryUse& use : info.memory()) {
      if (mine.empty() || use.tier() != "device") continue;
      if (use.category() == "logits" || use.category() == "activations") {
        EXPECT_GT(use.peak_bytes(), 0) << use.category();
      }
    }
    ASSERT_EQ(info.memory_totals_size(), 2);
    for (const MemoryTotal& total : info.memory_totals()) {
      EXPECT_EQ(total.current_bytes(), totals[total.tier()]) << total.tier();
      EXPECT_GE(total.peak_bytes(), total.current_bytes()) << total.tier();
    }
    EXPECT_GT(info.memory_totals(0).peak_bytes(), totals["device"]);
  });
}

TEST_P(PolicyEngineTest, ABudgetThatIsTooSmallIsToldInsteadOfLoading) {
  const int tier = GetParam().offload ? 1 : 0;  // that holds the optimizer
  int64_t needed = 0;
  OnEveryRank([&](const RankContext& context, PolicyEngine& engine, const std::vector<TrainingSequence>&) {
    if (context.rank == 0) needed = engine.Info().memory_totals(tier).current_bytes();
  });
  RunEngineRanks(GetParam().ranks, [&](RankContext context) {
    (tier == 0 ? context.device_memory_budget : context.host_memory_budget) = needed - 1;
    const absl::Status status = PolicyEngine::Load(config_.actor(), config_.seed(), context).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(HasSubstr("more of optimizer do not fit"),
                                 HasSubstr(tier == 0 ? "device_memory_budget" : "host_memory_budget"),
                                 HasSubstr("Held now: "), HasSubstr("more ranks")));
  });
}

// Of one rank: others would wait in their collectives.
class OnePolicyEngineTest : public PolicyEngineTest {};
INSTANTIATE_TEST_SUITE_P(Arrangements, OnePolicyEngineTest, ::testing::Values(Arrangement{1, 3, 2}));

TEST_P(OnePolicyEngineTest, ABudgetPassedByAnUpdateIsTold) {
  RunEngineRanks(1, [&](RankContext context) {
    int64_t needed = 0, most = 0;
    UpdateSums sums;
    for (const bool bounded : {false, true}) {
      context.device_memory_budget = bounded ? (needed + most) / 2 : 0;
      auto engine = PolicyEngine::Load(config_.actor(), config_.seed(), context);
      ASSERT_TRUE(engine.ok()) << engine.status();
      needed = (*engine)->Info().memory_totals(0).current_bytes();
      const absl::Status status =
          (*engine)->Update(Call(context.rank, PolicyLossConfig::KIND_PPO), batch_.sequences, &sums);
      most = (*engine)->Info().memory_totals(0).peak_bytes();
      if (!bounded) continue;
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(std::string(status.message()), ::testing::AllOf(HasSubstr("policy update: "), HasSubstr("budget")));
      EXPECT_LE(most, context.device_memory_budget);
      EXPECT_EQ((*engine)->Info().memory_totals(0).current_bytes(), needed);
      EXPECT_EQ((*engine)->Info().memory_totals(0).budget_bytes(), context.device_memory_budget);
    }
  });
}

TEST_P(OnePolicyEngineTest, RowsThatStandForNoTokenChangeNoLogProbability) {
  config_.mutable_actor()->set_dtype("bf16");
  const auto cut = ReadModelConfig(kModel)->vocab_size;
  const std::string padded = PaddedFolder(kModel, 10, 3);
  for (const int ranks : {1, 2}) {
    std::mutex mutex;
    std::map<bool, std::map<int, std::string>> values;  // by whether the vocabulary is padded, and by rank
    for (const bool is_padded : {false, true}) {
      config_.mutable_actor()->set_pretrain(is_padded ? padded : kModel);
      RunEngineRanks(ranks, [&](const RankContext& context) {
        auto engine = PolicyEngine::Load(config_.actor(), config_.seed(), context, cut);
        ASSERT_TRUE(engine.ok()) << engine.status();
        std::vector<TokenSequence> sequences;
        for (const TrainingSequence& sequence : batch_.sequences) sequences.push_back(sequence.tokens());
        ForwardCall call;
        call.set_temperature(golden_["temperature"]);
        call.add_micro_batch_sizes(sequences.size());
        std::vector<TokenValues> replies;
        ASSERT_TRUE((*engine)->Forward(call, sequences, &replies).ok());
        std::lock_guard lock(mutex);
        for (const TokenValues& reply : replies) values[is_padded][context.rank] += reply.SerializeAsString();
      });
    }
    EXPECT_EQ(values[true], values[false]) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Arrangements, PolicyEngineTest,
                         ::testing::Values(Arrangement{1, 3, 2}, Arrangement{2, 3, 1}, Arrangement{3, 3, 2},
                                           Arrangement{2, 0, 2}, Arrangement{2, 2, 1}, Arrangement{5, 3, 1},
                                           Arrangement{4, 3, 1, /*shard_size=*/2},
                                           Arrangement{3, 2, 1, /*shard_size=*/1},
                                           Arrangement{2, 3, 2, 0, /*offload=*/true},
                                           Arrangement{4, 3, 1, /*shard_size=*/2, /*offload=*/true}));

}  // namespace
}  // namespace quartet
