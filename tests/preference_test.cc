// Training on preferences over real processes: from pairs to a model's folder that has learned them.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "core/base/files/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Answers of letters of the alphabet's first half are preferred to those of its second.
std::string Pairs(int count, uint32_t seed) {
  std::mt19937 random(seed);
  const auto letters = [&](char first) {
    std::string text;
    for (uint32_t n = 3 + random() % 4; n > 0; --n) text += static_cast<char>(first + random() % 13);
    return text;
  };
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const uint32_t a = random() % 100, b = random() % 100;
    const std::string chosen = letters('a'), rejected = letters('n');
    absl::StrAppend(&lines, "{\"prompt\": \"", a, "+", b, "=\", \"chosen\": \"", chosen, "\", \"rejected\": \"",
                    rejected, "\"}\n");
  }
  return lines;
}

class PreferenceRunTest : public ::testing::Test {
 protected:
  // Runs `program` with --launch on pairs; `models` are sections of the configuration.
  ProcessHarness::Outcome Run(const std::string& program, const std::string& models) {
    const std::string text = absl::Substitute(
        R"(
run_dir: "$0"
$1
preference { data: "$2" eval_data: "$3" }
train { eval_steps: 20 train_batch_size: 16 max_steps: 40 }
)",
        harness_.Path("run"), models, harness_.Write("pairs.jsonl", Pairs(400, 1)),
        harness_.Write("held_out.jsonl", Pairs(60, 2)));
    return harness_.Run(absl::StrCat("orchestrator/", program),
                        {"--config=" + harness_.Write("run.textproto", text), "--launch"}, absl::Seconds(240));
  }

  // What a run has told, step by step.
  void ExpectLearned(const ProcessHarness::Outcome& outcome, const std::string& name) {
    ASSERT_TRUE(outcome.ended);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("pairs: 400 an epoch"), HasSubstr("held-out pairs: 60 in all"),
                                      HasSubstr("first pair, chosen, as the model reads it: "),
                                      HasSubstr("held-out pairs before the first step: accuracy "),
                                      HasSubstr("held-out pairs after step 20: accuracy "), HasSubstr("done: ")));
    const auto metrics = ReadRecords(harness_.Path("run/metrics.jsonl"));
    ASSERT_EQ(metrics.size(), 40u);
    EXPECT_LT(metrics.back().at(name + "/loss").get<double>(), 0.5 * metrics.front().at(name + "/loss").get<double>());
    for (const char* leaf : {"accuracy", "margin", "chosen_reward", "rejected_reward", "grad_norm", "micro_batches"}) {
      EXPECT_TRUE(metrics.back().contains(absl::StrCat(name, "/", leaf))) << leaf;
    }
    EXPECT_FALSE(metrics[0].contains("eval/preference_accuracy"));
    EXPECT_TRUE(metrics[19].contains("eval/preference_accuracy"));
    EXPECT_GE(metrics.back().at("eval/preference_accuracy").get<double>(), 0.9);
    EXPECT_GT(metrics.back().at("eval/preference_margin").get<double>(), 0);
    EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());
  }

  void WriteShortRuns() {
    model_ = WriteTinyModel(harness_, "model");
    pairs_ = harness_.Write("pairs.jsonl", Pairs(60, 1));
    rows_ = harness_.Write(
        "rows.jsonl", "{\"prompt\": \"1+1=\", \"response\": \"2\"}\n{\"prompt\": \"2+3=\", \"response\": \"5\"}\n");
  }
  // The arguments of `program` for so many steps on that.
  std::vector<std::string> ShortRun(const std::string& program, const std::string& folder, size_t steps,
                                    const std::vector<std::string>& sets) {
    const std::string model = program == "reward_model" ? "critic" : "actor";
    std::vector<std::string> arguments = {
        "--launch",
        "--set=run_dir=" + harness_.Path(folder),
        program == "sft" ? "--set=sft.data=" + rows_ : "--set=preference.data=" + pairs_,
        absl::StrCat("--set=", model, ".pretrain=", model_),
        absl::StrCat("--set=", model, ".max_len=32"),
        absl::StrCat("--set=", model, ".learning_rate=1e-3"),
        "--set=train.train_batch_size=4",
        absl::StrCat("--set=train.max_steps=", steps)};
    for (const std::string& set : sets) arguments.push_back("--set=" + set);
    return arguments;
  }
  std::string Weights(const std::string& folder, size_t step, const std::string& saved) {
    return ReadFile(harness_.Path(absl::StrCat(folder, "/checkpoints/step_", step, "/", saved, "/model.safetensors")))
        .value();
  }

  ProcessHarness harness_;
  std::string model_, pairs_, rows_;
};

TEST_F(PreferenceRunTest, DpoTeachesThePolicyWhatIsPreferred) {
  const std::string model = WriteTinyModel(harness_, "model");
  ExpectLearned(Run("dpo", absl::Substitute(R"(
actor { pretrain: "$0" dtype: "fp32" max_len: 32 learning_rate: 3e-3 lr_scheduler: "constant" }
services { policy_trainer { ranks: 2 threads: 1 } scorer { threads: 1 } })",
                                            model)),
                "dpo");
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(harness_.Path(absl::StrCat("run/checkpoints/latest/policy/", file)))) << file;
  }
}

TEST_F(PreferenceRunTest, ARewardModelLearnsWhatIsPreferredAndAScorerLoadsIt) {
  const std::string model = WriteTinyModel(harness_, "model");
  ExpectLearned(Run("reward_model", absl::Substitute(R"(
critic { pretrain: "$0" dtype: "fp32" max_len: 32 learning_rate: 3e-3 lr_scheduler: "constant" }
services { critic_trainer { ranks: 2 threads: 1 } })",
                                                     model)),
                "reward_model");
  const auto scorer = harness_.StartService(
      "scorer", {"--set=actor.pretrain=" + model, "--set=algorithm.kl.init_kl_coef=0",
                 "--set=reward.source.0.model=" + harness_.Path("run/checkpoints/latest/critic"),
                 "--set=services.scorer.listen=127.0.0.1:0", "--set=run_dir=" + harness_.Path("scorer_run")});
  EXPECT_NE(scorer.address, "") << harness_.Output(scorer.pid);
}

// Cut off after an update, and gone on with: what is left is, to the last bit, what a run leaves that was not.
TEST_F(PreferenceRunTest, ARunThatWasCutOffGoesOnToTheSameModel) {
  WriteShortRuns();
  const auto run = [&](const std::string& program, const std::string& folder, std::vector<std::string> sets,
                       const std::map<std::string, std::string>& environment = {}) {
    sets.push_back("train.save_steps=3");
    return harness_.Run("orchestrator/" + program, ShortRun(program, folder, 7, sets), absl::Seconds(240), environment);
  };
  for (const std::string program : {"sft", "dpo", "reward_model"}) {
    const std::string service = program == "reward_model" ? "critic_trainer" : "policy_trainer";
    const std::string saved = program == "reward_model" ? "critic" : "policy";
    const std::string whole = program + "_whole", parts = program + "_parts";
    const auto in_one = run(program, whole, {});
    ASSERT_EQ(in_one.exit_code, 0) << in_one.output;
    const auto cut_off = run(program, parts, {}, {{"QUARTET_FAIL_POINTS", service + ".update=kill@5"}});
    EXPECT_EQ(cut_off.exit_code, 1) << cut_off.output;
    EXPECT_THAT(cut_off.output, AllOf(HasSubstr("To continue after step 3:"), HasSubstr("train.load_checkpoint=true")));
    const auto rest = run(program, parts, {"train.load_checkpoint=true"});
    ASSERT_EQ(rest.exit_code, 0) << rest.output;
    EXPECT_THAT(rest.output, HasSubstr("going on after 3 of 7 steps"));
    EXPECT_TRUE(Weights(whole, 7, saved) == Weights(parts, 7, saved)) << program;
    EXPECT_EQ(ReadRecords(harness_.Path(parts + "/metrics.jsonl")).size(), 7u);
    const auto shorter =
        run(program, parts, {"train.load_checkpoint=true", "train.max_steps=2", "train.allow_changed_run=true"});
    EXPECT_EQ(shorter.exit_code, 2) << shorter.output;
    EXPECT_THAT(shorter.output, HasSubstr("steps already, more than the 2 of train.max_steps"));
    const auto refused = run(program, parts, {"train.load_checkpoint=true", "seed=5"});
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("seed: "));
  }
}

// A cluster that takes a job's nodes away tells all of its processes.
TEST_F(PreferenceRunTest, ARunSavesAtSigtermAndGoesOnToTheSameModel) {
  WriteShortRuns();
  const std::vector<std::string> sets = {"train.save_on_sigterm=true", "actor.lr_scheduler=constant",
                                         "actor.lr_warmup_ratio=0"};
  const pid_t pid = harness_.Start("orchestrator/dpo", ShortRun("dpo", "stopped", 100000, sets));
  WaitForRecords(harness_, pid, harness_.Path("stopped/metrics.jsonl"), 2, absl::Seconds(120));
  for (const pid_t process : harness_.Alive()) kill(process, SIGTERM);
  const auto outcome = harness_.Wait(pid, absl::Seconds(60));
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM) << outcome.output;
  const size_t steps = ReadRecords(harness_.Path("stopped/metrics.jsonl")).size();
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("the run ends after the step under way"), HasSubstr("stopped by SIGTERM"),
                                    HasSubstr(absl::StrCat("To continue after step ", steps, ":")),
                                    HasSubstr("train.load_checkpoint=true")));
  EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());

  std::vector<std::string> more = sets;
  more.push_back("train.load_checkpoint=true");
  const auto rest = harness_.Run("orchestrator/dpo", ShortRun("dpo", "stopped", steps + 1, more), absl::Seconds(240));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr(absl::StrCat("going on after ", steps, " of ", steps + 1, " steps")));
  const auto whole = harness_.Run("orchestrator/dpo", ShortRun("dpo", "whole", steps + 1, sets), absl::Seconds(240));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_TRUE(Weights("stopped", steps + 1, "policy") == Weights("whole", steps + 1, "policy"));
}

TEST_F(PreferenceRunTest, NamesWhatHasNoEffectInAProgram) {
  const std::string model = WriteTinyModel(harness_, "model");
  const auto outcome =
      Run("reward_model", absl::Substitute(R"(critic { pretrain: "$0" } actor { pretrain: "$0" })", model));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("actor.pretrain has no effect: "));
}

}  // namespace
}  // namespace quartet
