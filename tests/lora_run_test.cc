// Training of adapters over real processes: from a model to a folder of PEFT's, on from there, and after a cut.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "core/base/files/files.h"
#include "core/model/initialize.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class LoraRunTest : public ::testing::Test {
 protected:
  LoraRunTest() : model_(WriteTinyModel(harness_, "model")) {
    std::string rows, pairs;
    for (int i = 0; i < 40; ++i) {
      absl::StrAppend(&rows, "{\"prompt\": \"", i, "+1=\", \"response\": \"", i + 1, "\"}\n");
      absl::StrAppend(&pairs, "{\"prompt\": \"", i, "\", \"chosen\": \"abc\", \"rejected\": \"xyz\"}\n");
    }
    rows_ = harness_.Write("rows.jsonl", rows);
    pairs_ = harness_.Write("pairs.jsonl", pairs);
  }

  // Eight steps of fine-tuning, of DPO or of a reward model, with adapters.
  ProcessHarness::Outcome Run(const std::string& program, const std::string& folder, std::vector<std::string> sets,
                              const std::map<std::string, std::string>& environment = {}) {
    const bool sft = program == "sft", reward_model = program == "reward_model";
    const std::string model = reward_model ? "critic." : "actor.";
    std::vector<std::string> arguments = {"--launch", "--set=run_dir=" + harness_.Path(folder)};
    for (const std::string& set : std::vector<std::string>{
             sft ? "sft.data=" + rows_ : "preference.data=" + pairs_, "train.train_batch_size=8", "train.max_steps=8",
             model + "max_len=32", model + "learning_rate=2e-2", model + "pretrain=" + model_,
             model + "lr_scheduler=constant", model + "lora.r=4", model + "lora.alpha=8",
             absl::StrCat("services.", reward_model ? "critic" : "policy", "_trainer.threads=1"),
             "train.save_steps=4"}) {
      sets.insert(sets.begin(), set);
    }
    for (const std::string& set : sets) arguments.push_back("--set=" + set);
    return harness_.Run("orchestrator/" + program, arguments, absl::Seconds(240), environment);
  }
  std::string Saved(const std::string& folder, int step = 8, const std::string& model = "policy") const {
    return harness_.Path(absl::StrCat(folder, "/checkpoints/step_", step, "/", model));
  }
  std::string Adapters(const std::string& folder, int step = 8) const {
    return ReadFile(Saved(folder, step) + "/adapter_model.safetensors").value();
  }
  std::vector<double> Losses(const std::string& folder, const std::string& name) const {
    std::vector<double> losses;
    for (const auto& record : ReadRecords(harness_.Path(folder + "/metrics.jsonl"))) losses.push_back(record.at(name));
    return losses;
  }

  ProcessHarness harness_;
  const std::string model_;
  std::string rows_, pairs_;
};

TEST_F(LoraRunTest, FineTuningLeavesAFolderOfAdaptersThatIsTrainedOn) {
  const std::string before = ReadFile(model_ + "/model.safetensors").value();
  const auto outcome = Run("sft", "first", {"services.policy_trainer.ranks=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::vector<double> losses = Losses("first", "sft/loss");
  ASSERT_EQ(losses.size(), 8u);
  EXPECT_LT(losses.back(), 0.97 * losses.front());

  const auto config = nlohmann::json::parse(std::ifstream(Saved("first") + "/adapter_config.json"));
  EXPECT_EQ(config["base_model_name_or_path"], model_);
  EXPECT_EQ(config["r"], 4);
  EXPECT_TRUE(std::filesystem::exists(Saved("first") + "/tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(Saved("first") + "/model.safetensors"));
  EXPECT_EQ(ReadFile(model_ + "/model.safetensors").value(), before);

  const auto on = Run("sft", "second", {"actor.pretrain=" + Saved("first"), "actor.dtype=bf16"});
  ASSERT_EQ(on.exit_code, 0) << on.output;
  EXPECT_LT(Losses("second", "sft/loss").front(), 1.05 * losses.back());
  EXPECT_NE(Adapters("second"), Adapters("first"));

  const auto other = Run("sft", "third", {"actor.pretrain=" + Saved("first"), "actor.lora.r=8"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.output,
              HasSubstr("actor.lora.r is 8 and not 4: they must be as the adapters in " + Saved("first")));
  EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());
}

// With the state of two ranks three go on; of as many, to the same bits.
TEST_F(LoraRunTest, GoesOnAfterACutAsIfThereHadBeenNone) {
  const std::vector<std::string> two = {"services.policy_trainer.ranks=2"};
  ASSERT_EQ(Run("sft", "whole", two).exit_code, 0);
  const std::map<std::string, std::string> cut = {{"QUARTET_FAIL_POINTS", "policy_trainer.update=kill@6"}};
  EXPECT_NE(Run("sft", "cut", two, cut).exit_code, 0);
  std::filesystem::copy(harness_.Path("cut"), harness_.Path("more"), std::filesystem::copy_options::recursive);

  auto outcome = Run("sft", "cut", {two[0], "train.load_checkpoint=true"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(Adapters("cut"), Adapters("whole"));

  outcome = Run("sft", "more", {"services.policy_trainer.ranks=3", "train.load_checkpoint=true"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NEAR(Losses("more", "sft/loss").back() / Losses("whole", "sft/loss").back(), 1, 0.05);

  outcome = Run("sft", "cut", {two[0], "train.load_checkpoint=true", "actor.lora.alpha=16"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("actor.lora.alpha: 8 -> 16"));
}

TEST_F(LoraRunTest, AdaptersWhoseModelWasReplacedAreRefusedWhereverTheyAreRead) {
  ASSERT_EQ(Run("sft", "first", {}).exit_code, 0);
  const std::string adapters = "actor.pretrain=" + Saved("first"), copy = harness_.Path("copy");
  std::filesystem::rename(model_, copy);
  const absl::Status written = WriteRandomModel(TinyModelConfig(), HeadKind::kVocabulary, 8, Dtype::kF32, model_);
  ASSERT_TRUE(written.ok()) << written;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy(copy + "/" + name, model_ + "/" + name);
  }
  const std::string replaced = absl::StrCat("belongs to another model than is in ", model_, " now");
  const std::string of_adapters = absl::StrCat(Saved("first"), " ", replaced);
  const auto expect_refused = [&](const ProcessHarness::Outcome& outcome, const std::string& says) {
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_THAT(outcome.output, HasSubstr(says));
  };
  expect_refused(Run("sft", "trained_on", {adapters}), of_adapters);
  expect_refused(Run("dpo", "dpo", {"reference.pretrain=" + Saved("first")}),
                 "reference.pretrain: the folder of adapters " + of_adapters);
  expect_refused(harness_.Run("rollout/rollout",
                              {"--set=rollout.pretrain=" + Saved("first"), "--set=rollout.dtype=fp32",
                               "--set=run_dir=" + harness_.Path("rollout")},
                              absl::Seconds(60)),
                 of_adapters);
  expect_refused(harness_.Run("tools/model/merge_lora",
                              {"--model=" + Saved("first"), "--to=" + harness_.Path("merged")}, absl::Seconds(60)),
                 of_adapters);
  expect_refused(
      Run("sft", "first", {"train.load_checkpoint=true", "train.max_steps=12", "train.allow_changed_run=true"}),
      replaced);

  // The way out that the documents have, of a copy of the adapters.
  const std::string own = harness_.Path("own");
  std::filesystem::copy(Saved("first"), own);
  auto config = nlohmann::json::parse(std::ifstream(own + "/adapter_config.json"));
  config["base_model_name_or_path"] = copy;
  std::ofstream(own + "/adapter_config.json") << config;
  auto outcome = Run("sft", "moved", {"actor.pretrain=" + own});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;

  std::filesystem::remove_all(model_);
  std::filesystem::copy(copy, model_);  // the same, and newer
  outcome = Run("sft", "first", {"train.load_checkpoint=true", "train.max_steps=12"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  outcome = Run("sft", "trained_on", {adapters});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

// One service holds both.
TEST_F(LoraRunTest, DpoTeachesAdaptersWithTheirModelAsTheReference) {
  const auto outcome = Run("dpo", "dpo", {"services.policy_trainer.ranks=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("scorer")));
  const std::vector<double> losses = Losses("dpo", "dpo/loss");
  EXPECT_NEAR(losses.front(), 0.6931, 1e-3);
  EXPECT_LT(losses.back(), 0.9 * losses.front());
  EXPECT_TRUE(std::filesystem::exists(Saved("dpo") + "/adapter_config.json"));
}

// The head in the folder, too; it is trained on, and scores.
TEST_F(LoraRunTest, ARewardModelLearnsByAdaptersAndItsHead) {
  const auto outcome = Run("reward_model", "first", {"services.critic_trainer.ranks=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::vector<double> losses = Losses("first", "reward_model/loss");
  EXPECT_LT(losses.back(), 0.5 * losses.front());
  const std::string saved = Saved("first", 8, "critic");
  const auto config = nlohmann::json::parse(std::ifstream(saved + "/adapter_config.json"));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_TRUE(std::filesystem::exists(saved + "/tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(saved + "/model.safetensors"));

  const auto on = Run("reward_model", "second", {"critic.pretrain=" + saved, "train.max_steps=1"});
  ASSERT_EQ(on.exit_code, 0) << on.output;
  EXPECT_LT(Losses("second", "reward_model/loss").front(), 1.2 * losses.back());

  const auto other = Run("reward_model", "third", {"critic.pretrain=" + saved, "critic.lora.r=8"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.output, HasSubstr("critic.lora.r is 8 and not 4"));

  // The run itself goes on, on another number of ranks, and with no other adapters.
  const std::vector<std::string> further = {"train.load_checkpoint=true", "train.max_steps=9"};
  const auto continued = Run("reward_model", "first", further);
  ASSERT_EQ(continued.exit_code, 0) << continued.output;
  ASSERT_EQ(Losses("first", "reward_model/loss").size(), 9u);
  EXPECT_LT(Losses("first", "reward_model/loss").back(), 1.2 * losses.back());
  const auto reshaped = Run("reward_model", "first", {further[0], further[1], "critic.lora.alpha=16"});
  EXPECT_NE(reshaped.exit_code, 0);
  EXPECT_THAT(reshaped.output, HasSubstr("critic.lora.alpha: 8 -> 16"));

  const auto scorer = harness_.StartService(
      "scorer",
      {"--set=actor.pretrain=" + model_, "--set=algorithm.kl.init_kl_coef=0", "--set=reward.source.0.model=" + saved,
       "--set=services.scorer.listen=127.0.0.1:0", "--set=run_dir=" + harness_.Path("scorer_run")});
  EXPECT_NE(scorer.address, "") << harness_.Output(scorer.pid);
}

// Four steps on one batch of prompts a step.
class LoraPpoTest : public ::testing::Test {
 protected:
  LoraPpoTest() : model_(WriteTinyModel(harness_, "model")) {}
  ProcessHarness::Outcome Run(std::vector<std::string> sets, const std::map<std::string, std::string>& faults = {}) {
    for (const char* set : {"actor.lora.r=4", "actor.lora.alpha=8", "actor.learning_rate=3e-2", "train.max_steps=4",
                            "algorithm.advantage_estimator=reinforce", "actor.lr_scheduler=constant"}) {
      sets.insert(sets.begin(), set);
    }
    const std::string text = absl::Substitute(
        R"(
run_dir: "$0"
data { prompt_data: "$1" prompt_max_len: 16 }
actor { pretrain: "$2" }
rollout { rollout_batch_size: 8 n_samples_per_prompt: 2 generate_max_len: 8 kv_cache_bytes: 4194304 }
reward { source { rule: "length" max_len: 3 } }
services { rollout { threads: 1 } policy_trainer { threads: 1 } scorer { threads: 1 } }
)",
        harness_.Path("run"), harness_.Write("prompts.jsonl", Prompts()), model_);
    std::vector<std::string> arguments = {"--launch", "--config=" + harness_.Write("run.textproto", text)};
    for (const std::string& set : sets) arguments.push_back("--set=" + set);
    return harness_.Run(kOrchestrator, arguments, absl::Seconds(240), faults);
  }
  static std::string Prompts() {
    std::string prompts;
    for (int i = 0; i < 40; ++i)
      absl::StrAppend(&prompts, "{\"prompt\": \"", i, "+1=\", \"label\": \"", i + 1, "\"}\n");
    return prompts;
  }
  std::vector<nlohmann::json> Metrics() const { return ReadRecords(harness_.Path("run/metrics.jsonl")); }

  ProcessHarness harness_;
  const std::string model_;
};

// In bf16, whatever the ranks are: the adapters that were trained are those that answer, to the last places.
TEST_F(LoraPpoTest, TrainerAndRolloutAgreeWhileAdaptersLearn) {
  const std::vector<std::vector<std::string>> arrangements = {
      {"algorithm.advantage_estimator=gae", "critic.pretrain=" + model_, "critic.lora.r=4", "train.save_steps=4",
       "services.critic_trainer.ranks=2", "services.policy_trainer.ranks=2", "services.rollout.ranks=2",
       "rollout.zero_stage=3"},
      {"algorithm.advantage_estimator=grpo", "services.rollout.ranks=2", "rollout.tensor_parallel_size=2",
       "actor.lora.target_modules=q_proj,o_proj,down_proj"},
      {"algorithm.advantage_estimator=grpo", "actor.lora.r=1", "actor.zero_stage=0", "actor.dtype=fp32",
       "rollout.dtype=fp32"}};
  for (const auto& sets : arrangements) {
    const auto outcome = Run(sets);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const auto metrics = Metrics();
    ASSERT_EQ(metrics.size(), 4u);
    // Sums over ranks are rounded otherwise.
    const bool alike = std::ranges::find(sets, "rollout.tensor_parallel_size=2") == sets.end();
    const double most = alike ? 1e-5 : 2e-3;
    for (const auto& step : metrics) EXPECT_LT(step.at("rollout/log_prob_diff_mean").get<double>(), most);
    EXPECT_LT(std::abs(metrics.front().at("kl/mean").get<double>()), 1e-5) << "the reference is the policy as it began";
    EXPECT_GT(std::abs(metrics.back().at("kl/mean").get<double>()), 1e-3) << "they do not learn";
    EXPECT_TRUE(std::filesystem::exists(harness_.Path("run/checkpoints/latest/policy/adapter_config.json")));
    EXPECT_EQ(std::filesystem::exists(harness_.Path("run/checkpoints/latest/critic/adapter_config.json")),
              std::ranges::find(sets, "critic.lora.r=4") != sets.end());
    EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());
    std::filesystem::remove_all(harness_.Path("run"));
  }
}

TEST_F(LoraPpoTest, ARunEndsByNameAtTheStepWhereARolloutWouldAnswerOtherwiseThanItsPolicy) {
  struct Fault {
    std::string point, says;
    size_t steps;  // that it makes
  };
  for (const Fault& fault :
       std::vector<Fault>{{"policy_trainer.publish.other_alpha=trip@2", "are adapters that are added times 4", 1},
                          {"policy_trainer.publish.lacks_a_tensor=trip@1", "is missing", 1},
                          {"rollout.commit.unused=trip", "more than train.max_log_prob_diff_mean (0.001)", 1},
                          {"orchestrator.weight_sync.skip=trip@1", "but the weights in use are version 0", 1}}) {
    const auto outcome = Run({}, {{"QUARTET_FAIL_POINTS", fault.point}});
    EXPECT_NE(outcome.exit_code, 0) << fault.point;
    EXPECT_THAT(outcome.output, HasSubstr(fault.says)) << fault.point;
    EXPECT_LE(Metrics().size(), fault.steps) << fault.point;
    EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());
    std::filesystem::remove_all(harness_.Path("run"));
  }
}

// By one bit, which no log-probability shows.
TEST_F(LoraPpoTest, ARunEndsByNameWhereTheRolloutHasAnotherModelThanTheAdaptersBelongTo) {
  const std::string other = harness_.Path("other");
  std::filesystem::copy(model_, other);
  {
    std::fstream file(other + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-4, std::ios::end);
    const int low = file.get();
    file.seekp(-4, std::ios::end);
    file.put(static_cast<char>(low ^ 1));
  }
  const auto outcome = Run({"rollout.pretrain=" + other});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("are adapters of another model"));
  EXPECT_LE(Metrics().size(), 1u);
}

}  // namespace
}  // namespace quartet
