// One RL step as a whole, from the rollout's rewards and log-probabilities to the change of the parameters, on several
// ranks, is what plain torch makes of it in double precision (tools/golden/rl_whole_step.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/config/run_config.h"
#include "core/rl/advantages.h"
#include "core/rl/aggregation.h"
#include "core/rl/kl.h"
#include "core/rl/options/estimators.h"
#include "core/rl/rewards.h"
#include "core/rl/testing/token_arrays.h"
#include "core/safetensors/reader.h"
#include "core/training/batch/batch_split.h"
#include "core/training/engine/update_call.h"
#include "core/training/testing/engine_ranks.h"
#include "policy_trainer/policy_engine.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {
namespace {

using nlohmann::json;

constexpr char kLlama[] = "core/model/testdata/llama";
// Relative. Torch's own float32 comes within 2e-5 of its float64 here (the script prints it).
constexpr double kTolerance = 5e-5;

const json& StepGolden() {
  static const json golden = json::parse(std::ifstream("policy_trainer/testdata/whole_step.json"));
  return golden;
}

std::vector<float> Floats(const json& array) { return array.get<std::vector<float>>(); }

void Assign(const std::vector<float>& values, google::protobuf::RepeatedField<float>* field) {
  field->Assign(values.begin(), values.end());
}

std::vector<AdvantagesAndReturns<float>> Advantages(const json& options) {
  std::vector<std::vector<float>> kl, values;
  for (const json& s : StepGolden()["sequences"]) {
    kl.push_back(EstimateKl(Floats(s["old_log_probs"]), Floats(s["reference_log_probs"]), KlEstimator::kK1));
    values.push_back(Floats(s["values"]));
  }
  std::vector<ScoredSequence<float>> batch;
  for (const json& s : StepGolden()["sequences"]) {
    const size_t i = batch.size();
    double reward = s["reward"];
    if (const int64_t buffer = options["overlong_buffer"]; buffer > 0) {
      reward +=
          OverlongPenalty(static_cast<int64_t>(values[i].size()), StepGolden()["max_new_tokens"], buffer, /*factor=*/1);
    }
    batch.push_back({.group = s["group"],
                     .reward = reward,
                     .tokens = values[i].size(),
                     .excluded = options["overlong_filtering"] && s["truncated"],
                     .kl = kl[i],
                     .values = values[i]});
  }
  const std::string name = options["estimator"];
  std::vector<std::string> settings = {"algorithm.advantage_estimator=" + name, "rollout.n_samples_per_prompt=2",
                                       "algorithm.reward_clip_min=-1e30", "algorithm.reward_clip_max=1e30"};
  if (options.contains("gamma")) settings.push_back("algorithm.gamma=" + options["gamma"].dump());
  if (FindEstimator(name)->needs_critic)
    settings.push_back(absl::StrCat("algorithm.lambd=", options.value("lambda", 1.0)));
  if (FindEstimator(name)->divides) settings.push_back("algorithm.group_std_eps=" + options["epsilon"].dump());
  const auto config = LoadRunConfig("", settings, "");
  return EstimateAdvantages(batch, config->algorithm(), options.value("kl_coefficient", 0.0));
}

// The sequences of each optimizer step.
std::vector<std::vector<TrainingSequence>> OptimizerSteps(const json& options) {
  const std::vector<AdvantagesAndReturns<float>> advantages = Advantages(options);
  const LossAggregation aggregation = *ParseLossAggregation(options["aggregation"].get<std::string>());
  std::vector<std::vector<TrainingSequence>> steps;
  for (const json& mini_batch : StepGolden()["mini_batches"]) {
    std::vector<AggregatedSequence> lengths;
    for (size_t i : mini_batch) {
      const json& s = StepGolden()["sequences"][i];
      lengths.push_back({static_cast<int64_t>(s["values"].size()), options["overlong_filtering"] && s["truncated"]});
    }
    const std::vector<float> weights = LossWeights(lengths, aggregation);
    std::vector<TrainingSequence>& sequences = steps.emplace_back();
    for (size_t i : mini_batch) {
      const json& s = StepGolden()["sequences"][i];
      const int answer = static_cast<int>(s["values"].size());
      TrainingSequence& sequence = sequences.emplace_back();
      sequence.mutable_tokens()->set_index(sequences.size());
      for (int id : s["ids"]) {
        sequence.mutable_tokens()->add_action_mask(sequence.tokens().ids_size() >= s["prompt_tokens"]);
        sequence.mutable_tokens()->add_ids(id);
      }
      MutableArray(kLossWeights, &sequence).Resize(answer, weights[sequences.size() - 1]);
      Assign(advantages[i].advantages, &MutableArray(kAdvantages, &sequence));
      Assign(Floats(s["old_log_probs"]), &MutableArray(kOldLogProbs, &sequence));
      Assign(Floats(s["rollout_log_probs"]), &MutableArray(kRolloutLogProbs, &sequence));
      Assign(Floats(s["reference_log_probs"]), &MutableArray(kReferenceLogProbs, &sequence));
    }
  }
  return steps;
}

PolicyUpdateHeader Header(const json& options, double learning_rate) {
  PolicyUpdateHeader header;
  header.set_temperature(StepGolden()["temperature"]);
  header.set_learning_rate(learning_rate);
  PolicyLossConfig* loss = header.mutable_loss();
  loss->set_kind(options["kind"] == "gspo" ? PolicyLossConfig::KIND_GSPO : PolicyLossConfig::KIND_PPO);
  loss->set_eps_clip_low(options["eps_clip_low"]);
  loss->set_eps_clip_high(options["eps_clip_high"]);
  loss->set_entropy_coef(options["entropy"]);
  loss->set_kl_coef(options["kl_loss"]);
  loss->set_kl_estimator("k3");
  if (options["truncation"] > 0) {
    loss->set_correction_mode("token_truncate");
    loss->set_correction_high(options["truncation"]);
  }
  return header;
}

struct Case {
  const char* method;
  int ranks;
  int zero_stage;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.method << ", " << c.ranks << " ranks, stage " << c.zero_stage;
}

class WholeStep : public ::testing::TestWithParam<Case> {
 protected:
  WholeStep()
      : golden_(StepGolden()["methods"][GetParam().method]), config_(TestConfig(kLlama, GetParam().zero_stage)) {
    TrainerConfig* actor = config_.mutable_actor();
    actor->set_adam_beta1(StepGolden()["adamw"]["beta1"]);
    actor->set_adam_beta2(StepGolden()["adamw"]["beta2"]);
    actor->set_adam_eps(StepGolden()["adamw"]["eps"]);
    actor->set_weight_decay(StepGolden()["adamw"]["weight_decay"]);
    actor->set_max_norm(StepGolden()["max_norm"]);
  }

  // Two sequences a micro-batch; what this rank takes of a step.
  UpdateCall Call(size_t step, int rank, const std::vector<TrainingSequence>& sequences,
                  std::vector<TrainingSequence>* mine) const {
    std::vector<BatchItem> batch;
    for (const TrainingSequence& s : sequences) {
      batch.push_back({.tokens = s.tokens().ids_size(), .cost = static_cast<double>(s.tokens().ids_size())});
    }
    const BatchSplit split = SplitBatch(batch, GetParam().ranks, {.sequences = 2});
    for (size_t item : split.items[rank]) mine->push_back(sequences[item]);
    UpdateCall call = MakeUpdateCall(Header(golden_["options"], StepGolden()["learning_rates"][step]));
    const std::vector<uint32_t>& sizes = split.micro_batch_sizes[rank];
    call.mutable_micro_batch_sizes()->Assign(sizes.begin(), sizes.end());
    return call;
  }

  // The parameters of `folder` differ from the model's by the golden change.
  void ExpectChange(const std::string& folder) const {
    const auto before = CheckpointReader::Open(kLlama);
    const auto after = CheckpointReader::Open(folder);
    ASSERT_TRUE(before.ok() && after.ok()) << before.status() << after.status();
    const int64_t stride = StepGolden()["stride"];
    double distance = 0, norm = 0;
    EXPECT_EQ((*after)->tensors().size(), golden_["change"].size());
    for (const auto& [name, change] : golden_["change"].items()) {
      const int64_t n = (*after)->tensors().at(name).numel();
      std::vector<float> was(n), is(n);
      ASSERT_TRUE((*before)->ReadRange(name, 0, n, was.data()).ok());
      ASSERT_TRUE((*after)->ReadRange(name, 0, n, is.data()).ok());
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double difference = static_cast<double>(is[i]) - was[i];
        squares += difference * difference;
        if (i % stride != 0) continue;
        const double golden = change["elements"][i / stride];
        distance += (difference - golden) * (difference - golden);
        norm += golden * golden;
      }
      EXPECT_NEAR(std::sqrt(squares) / change["norm"].get<double>(), 1, kTolerance) << name;
    }
    EXPECT_LT(std::sqrt(distance / norm), kTolerance);
  }

  const json& golden_;
  RunConfig config_;
};

TEST_P(WholeStep, ChangesTheParametersAsPlainTorchDoes) {
  const std::vector<std::vector<TrainingSequence>> steps = OptimizerSteps(golden_["options"]);
  ASSERT_EQ(steps.size(), golden_["steps"].size());
  const std::string folder = NewTestFolder("policy");
  std::mutex mutex;
  std::vector<UpdateSums> sums(steps.size());  // over ranks
  RunEngineRanks(GetParam().ranks, [&](const RankContext& context) {
    auto engine = PolicyEngine::Load(config_.actor(), config_.seed(), context);
    ASSERT_TRUE(engine.ok()) << engine.status();
    for (size_t s = 0; s < steps.size(); ++s) {
      std::vector<TrainingSequence> mine;
      const UpdateCall call = Call(s, context.rank, steps[s], &mine);
      UpdateSums part;
      const absl::Status updated = (*engine)->Update(call, mine, &part);
      ASSERT_TRUE(updated.ok()) << updated;
      const double grad_norm = golden_["steps"][s]["grad_norm"];
      EXPECT_NEAR(part.grad_norm(), grad_norm, kTolerance * grad_norm);
      std::lock_guard lock(mutex);
      sums[s].set_loss(sums[s].loss() + part.loss());
      sums[s].set_clipped(sums[s].clipped() + part.clipped());
    }
    SaveCall call;
    call.set_folder(folder);
    SaveSummary saved;
    const absl::Status status = (*engine)->Save(call, &saved);
    ASSERT_TRUE(status.ok()) << status;
  });
  for (size_t s = 0; s < steps.size(); ++s) {
    EXPECT_NEAR(sums[s].loss(), golden_["steps"][s]["loss"].get<double>(), kTolerance) << "step " << s;
    EXPECT_EQ(sums[s].clipped(), golden_["steps"][s]["clipped"].get<double>()) << "step " << s;
  }
  ExpectChange(folder);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* method : {"ppo", "grpo", "gspo", "dapo"}) {
    for (const auto& [ranks, stage] : {std::pair(1, 3), {2, 3}, {3, 3}, {2, 0}, {2, 2}}) {
      cases.push_back({method, ranks, stage});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Methods, WholeStep, ::testing::ValuesIn(Cases()));

}  // namespace
}  // namespace quartet
