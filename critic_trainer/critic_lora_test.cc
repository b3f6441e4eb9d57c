// A critic and a reward model whose adapters and head are trained, against what peft makes of them;
// tools/golden/make_critic_lora_golden.py.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/state_folder.h"
#include "core/model/initialize.h"
#include "core/model/lora_options.h"
#include "core/model/testing/whole_model.h"
#include "core/rl/options/token_arrays.h"
#include "core/safetensors/reader.h"
#include "core/training/calls/sequence_calls.h"
#include "core/training/engine/update_call.h"
#include "core/training/testing/golden_batch.h"
#include "core/training/testing/whole_gradient.h"
#include "critic_trainer/critic_engine.h"
#include "critic_trainer/reward_model_loss.h"
#include "critic_trainer/value_loss.h"
#include "proto/critic_trainer.pb.h"

namespace quartet {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

nlohmann::json Parsed(const std::string& name) {
  return nlohmann::json::parse(std::ifstream("critic_trainer/testdata/" + name));
}

// Of a safetensors file, by the names that begin with `prefix`, without it.
std::map<std::string, std::vector<float>> ReadFloats(const std::string& path, const std::string& prefix = "") {
  std::map<std::string, std::vector<float>> tensors;
  const auto reader = CheckpointReader::OpenFile(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return tensors;
  for (const auto& [name, info] : (*reader)->tensors()) {
    if (name.rfind(prefix, 0) != 0) continue;
    const at::Tensor values = ReadTensor(**reader, name).value().contiguous();
    const float* begin = values.const_data_ptr<float>();
    tensors[name.substr(prefix.size())].assign(begin, begin + values.numel());
  }
  return tensors;
}

struct CriticLoraCase {
  int ranks, stage;
  std::string loss;  // "value" or "pairs"
};
std::ostream& operator<<(std::ostream& out, const CriticLoraCase& c) {
  return out << c.ranks << " ranks, stage " << c.stage << ", " << c.loss;
}

class CriticLoraStepsTest : public ::testing::TestWithParam<CriticLoraCase> {
 protected:
  CriticLoraStepsTest()
      : golden_(Parsed("lora_steps.json")),
        pairs_(Parsed("preference_steps.json")),
        values_("critic_trainer/testdata/golden.json", {kLossWeights, kOldValues, kReturns}, GetParam().ranks, 2),
        config_(TestConfig("core/model/testdata/llama_critic", GetParam().stage)) {
    TrainerConfig& critic = *config_.mutable_critic();
    TrainerConfig options;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(golden_["options"].dump(), &options).ok());
    critic.MergeFrom(options);
    critic.set_pretrain(golden_["adapters"].get<std::string>());
    critic.mutable_lora()->set_r(8);
    critic.mutable_lora()->set_alpha(8);
    for (const char* target : {"k_proj", "gate_proj"}) critic.mutable_lora()->add_target_modules(target);
    header_.set_learning_rate(options.learning_rate());
    if (IsOfPairs()) {
      header_.set_loss(CriticUpdateHeader::LOSS_PAIRWISE);
    } else {
      header_.set_value_clip(values_.golden["value_clip"]);
    }
  }

  bool IsOfPairs() const { return GetParam().loss == "pairs"; }
  std::vector<TrainingSequence> Sequences(size_t step) const {
    return IsOfPairs() ? GoldenPairs(pairs_, step, /*has_margin=*/true) : values_.sequences;
  }
  BatchSplit Split(const std::vector<TrainingSequence>& sequences) const {
    if (!IsOfPairs()) return values_.split;
    std::vector<const TokenSequence*> tokens;
    for (const TrainingSequence& sequence : sequences) tokens.push_back(&sequence.tokens());
    return SplitPairs(tokens, GetParam().ranks, {.limit = {.sequences = 4}}).value();
  }
  std::map<std::string, std::vector<float>> Pefts(const std::string& kind) const {
    return ReadFloats("critic_trainer/testdata/lora_steps.safetensors", GetParam().loss + "." + kind + ".");
  }

  const nlohmann::json golden_, pairs_;
  const GoldenBatch values_;
  RunConfig config_;
  CriticUpdateHeader header_;
};

TEST_P(CriticLoraStepsTest, TheGradientIsPefts) {
  TrainableModelOptions options;
  options.model.head = HeadKind::kScalar;
  options.model.zero_stage = GetParam().stage;
  options.model.compute_dtype = at::kFloat;
  options.model.lora = LoraOf(config_.critic());
  const std::vector<TrainingSequence> sequences = Sequences(0);
  const WholeGradient gradient = GradientOf(config_.critic().pretrain(), options, sequences, Split(sequences), [&] {
    return [this, sums = std::make_shared<UpdateSums>()](const std::vector<const TrainingSequence*>& part,
                                                         const PackedBatch& batch, const at::Tensor& hidden_TD,
                                                         const at::Tensor& head_1D) {
      return IsOfPairs() ? RewardModelLoss(part, batch, hidden_TD, head_1D, sums.get())
                         : ValueLoss(header_, part, batch, hidden_TD, head_1D, sums.get());
    };
  });
  EXPECT_NEAR(gradient.loss / golden_[GetParam().loss]["losses"][0].get<double>(), 1, 1e-6);
  const auto expected = Pefts("gradient");
  EXPECT_EQ(expected.size(), 2 * 2 * 2 + 1);  // blocks, products, factors, and the head
  ASSERT_EQ(gradient.of.size(), expected.size());
  const double norm = golden_[GetParam().loss]["grad_norms"][0];
  for (const auto& [name, values] : expected) {
    double largest = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(gradient.of.at(name).at(i) - values[i]));
    }
    EXPECT_LT(largest, 1e-6 * norm) << name;
  }
}

TEST_P(CriticLoraStepsTest, TwentyStepsArePefts) {
  const std::vector<double> expected = golden_[GetParam().loss]["losses"],
                            norms = golden_[GetParam().loss]["grad_norms"];
  const std::string folder = NewTestFolder("critic_lora");
  std::mutex mutex;
  std::vector<double> losses(expected.size());  // summed over ranks
  RunEngineRanks(GetParam().ranks, [&](const RankContext& context) {
    auto engine = CriticEngine::Load(config_.critic(), config_.seed(), context);
    ASSERT_TRUE(engine.ok()) << engine.status();
    for (size_t step = 0; step < expected.size(); ++step) {
      const std::vector<TrainingSequence> batch = Sequences(step);
      const BatchSplit split = Split(batch);
      std::vector<TrainingSequence> mine;
      for (const size_t item : split.items[context.rank]) mine.push_back(batch[item]);
      UpdateCall call = MakeUpdateCall(header_);
      const std::vector<uint32_t>& sizes = split.micro_batch_sizes[context.rank];
      call.mutable_micro_batch_sizes()->Assign(sizes.begin(), sizes.end());
      UpdateSums sums;
      const absl::Status status = (*engine)->Update(call, mine, &sums);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_NEAR(sums.grad_norm() / norms[step], 1, 1e-4) << "step " << step;
      std::lock_guard lock(mutex);
      losses[step] += sums.loss();
    }
    SaveCall call;
    call.set_folder(folder);
    SaveSummary summary;
    const absl::Status saved = (*engine)->Save(call, &summary);
    ASSERT_TRUE(saved.ok()) << saved;
  });
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(losses[step] / expected[step], 1, 1e-5) << "step " << step;
  }
  // By PEFT's names, and nothing else.
  for (const auto& [saved, kind] : {std::pair{folder, "last"}, {folder + "_ema", "average"}}) {
    const auto found = ReadFloats(saved + "/adapter_model.safetensors");
    const auto pefts = Pefts(kind);
    ASSERT_EQ(found.size(), pefts.size());
    for (const auto& [name, values] : pefts) {
      EXPECT_THAT(found.at(name), Pointwise(FloatNear(1e-4), values)) << kind << " " << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Arrangements, CriticLoraStepsTest,
                         ::testing::Values(CriticLoraCase{1, 0, "value"}, CriticLoraCase{2, 2, "value"},
                                           CriticLoraCase{2, 3, "value"}, CriticLoraCase{3, 3, "value"},
                                           CriticLoraCase{2, 0, "pairs"}, CriticLoraCase{1, 2, "pairs"},
                                           CriticLoraCase{1, 3, "pairs"}, CriticLoraCase{2, 3, "pairs"}));

class CriticLoraTest : public ::testing::TestWithParam<int> {
 protected:
  CriticLoraTest()
      : batch_("critic_trainer/testdata/golden.json", {kLossWeights, kOldValues, kReturns}, GetParam(), 1) {}
  // Of each sequence; then, after an update where that is asked for, it is saved.
  std::map<size_t, std::vector<float>> Values(const TrainerConfig& critic, const std::string& save_to = "") {
    std::mutex mutex;
    std::map<size_t, std::vector<float>> all;
    OnEveryRank<CriticEngine>(
        batch_, critic, /*seed=*/5,
        [&](const RankContext& context, CriticEngine& engine, const std::vector<TrainingSequence>& mine) {
          if (!save_to.empty()) {
            CriticUpdateHeader header;
            header.set_learning_rate(1e-2);
            UpdateCall call = MakeUpdateCall(header);
            batch_.SetMicroBatches(context.rank, &call);
            UpdateSums sums;
            ASSERT_TRUE(engine.Update(call, mine, &sums).ok());
            SaveCall save;
            save.set_folder(save_to);
            SaveSummary summary;
            ASSERT_TRUE(engine.Save(save, &summary).ok());
          }
          const auto values = batch_.Forward(engine, context.rank, /*temperature=*/0);
          std::lock_guard lock(mutex);
          all.insert(values.begin(), values.end());
        });
    return all;
  }
  const GoldenBatch batch_;
};

// Its head is the folder's, whatever that calls it, or a language model's new one, drawn from the same seed.
TEST_P(CriticLoraTest, BeginsWithTheValuesOfACriticThatIsTrainedWhole) {
  ModelConfig named = ReadModelConfig("core/model/testdata/llama_critic").value();
  named.scalar_head = "value_head";
  const std::string other = NewTestFolder("named_head");
  ASSERT_TRUE(WriteRandomModel(named, HeadKind::kScalar, 7, Dtype::kF32, other).ok());
  for (const std::string& model :
       {std::string("core/model/testdata/llama_critic"), other, std::string("core/model/testdata/llama")}) {
    TrainerConfig critic = TestConfig(model, 3).critic();
    const auto whole = Values(critic);
    ASSERT_EQ(whole.size(), batch_.sequences.size());
    critic.mutable_lora()->set_r(4);
    critic.mutable_lora()->set_alpha(8);
    EXPECT_EQ(Values(critic), whole) << model;

    // And is saved with the head that it then has.
    const std::string folder = NewTestFolder("trained");
    const auto trained = Values(critic, folder);
    EXPECT_NE(trained, whole);
    critic.set_pretrain(folder);
    EXPECT_EQ(Values(critic), trained) << model;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CriticLoraTest, ::testing::Values(1, 2));

// All that a state holds, by kind and parameter.
std::map<std::string, std::vector<float>> StateIn(const std::string& folder) {
  std::map<std::string, std::vector<float>> values;
  const auto reader = StateReader::Open(folder);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return values;
  const StateManifest& manifest = (*reader)->manifest();
  for (size_t k = 0; k < manifest.kinds.size(); ++k) {
    for (size_t p = 0; p < manifest.parameters.size(); ++p) {
      auto& part = values[manifest.kinds[k] + "." + manifest.parameters[p].name];
      part.resize(manifest.parameters[p].numel());
      EXPECT_TRUE((*reader)->Read(static_cast<int>(k), static_cast<int>(p), 0, part.size(), part.data()).ok());
    }
  }
  return values;
}

TEST(CriticLoraState, LoadsWithAnotherNumberOfRanksBitForBit) {
  TrainerConfig critic = TestConfig("core/model/testdata/llama", 3).critic();
  critic.set_ema_decay(0.9);
  critic.mutable_lora()->set_r(3);
  critic.mutable_lora()->set_alpha(6);
  // Takes so many steps from the state in `from`, or from the beginning, and saves what there is then. Returns the
  // state.
  const auto train = [&](int ranks, int stage, const std::string& from, int steps, const std::string& name) {
    const GoldenBatch batch("critic_trainer/testdata/golden.json", {kLossWeights, kOldValues, kReturns}, ranks, 1);
    critic.set_zero_stage(stage);
    critic.set_load_checkpoint(from);
    const std::string to = NewTestFolder(name);
    OnEveryRank<CriticEngine>(
        batch, critic, /*seed=*/5,
        [&](const RankContext& context, CriticEngine& engine, const std::vector<TrainingSequence>& mine) {
          CriticUpdateHeader header;
          header.set_learning_rate(1e-2);
          UpdateCall call = MakeUpdateCall(header);
          batch.SetMicroBatches(context.rank, &call);
          for (int step = 0; step < steps; ++step) {
            UpdateSums sums;
            ASSERT_TRUE(engine.Update(call, mine, &sums).ok());
          }
          SaveCall save;
          save.set_folder(to + "/model");
          save.set_state_folder(to + "/state");
          SaveSummary summary;
          const absl::Status saved = engine.Save(save, &summary);
          ASSERT_TRUE(saved.ok()) << saved;
        });
    return to + "/state";
  };
  std::string state = train(2, 3, "", 2, "two");
  const auto expected = StateIn(state);
  ASSERT_EQ(expected.size(), 4 * (2 * 7 * 2 + 1));  // kinds, blocks, products, factors, and the head
  EXPECT_NE(expected.at("exp_avg.base_model.model.score.weight"), std::vector<float>(32));
  for (const auto& [ranks, stage] : {std::pair{3, 3}, {1, 0}, {3, 0}, {2, 2}}) {
    state = train(ranks, stage, state, 0, absl::StrCat("on_", ranks, "_", stage));
    EXPECT_EQ(StateIn(state), expected) << ranks << " ranks, stage " << stage;
  }
  // As if it had never stopped.
  EXPECT_EQ(StateIn(train(2, 3, state, 2, "on")), StateIn(train(2, 3, "", 4, "whole")));
}

}  // namespace
}  // namespace quartet
