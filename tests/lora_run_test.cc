// Training of adapters over real processes: from a model to a folder of PEFT's, on from there, and after a cut.
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

  // Eight steps of fine-tuning or DPO, with adapters.
  ProcessHarness::Outcome Run(const std::string& program, const std::string& folder, std::vector<std::string> sets,
                              const std::map<std::string, std::string>& environment = {}) {
    const bool sft = program == "sft";
    const std::string section = sft ? "sft" : "preference";
    std::vector<std::string> arguments = {"--launch", "--set=run_dir=" + harness_.Path(folder),
                                          "--set=data.prompt_max_len=16", "--set=rollout.generate_max_len=16"};
    for (const std::string& set : std::vector<std::string>{
             absl::StrCat(section, ".data=", sft ? rows_ : pairs_), absl::StrCat(section, ".batch_size=8"),
             absl::StrCat(section, ".max_steps=8"), absl::StrCat(section, ".learning_rate=2e-2"),
             "actor.pretrain=" + model_, "actor.lr_scheduler=constant", "actor.lora.r=4", "actor.lora.alpha=8",
             "services.policy_trainer.threads=1", "train.save_steps=4"}) {
      sets.insert(sets.begin(), set);
    }
    for (const std::string& set : sets) arguments.push_back("--set=" + set);
    return harness_.Run("orchestrator/" + program, arguments, absl::Seconds(240), environment);
  }
  std::string Saved(const std::string& folder, int step = 8) const {
    return harness_.Path(absl::StrCat(folder, "/checkpoints/step_", step, "/policy"));
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
  EXPECT_THAT(other.output, HasSubstr("which are trained on: r: 4"));
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

TEST_F(LoraRunTest, DpoTeachesAdaptersBesideTheirModelAsTheReference) {
  const auto outcome = Run("dpo", "dpo", {"services.policy_trainer.ranks=2", "services.scorer.threads=1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::vector<double> losses = Losses("dpo", "dpo/loss");
  EXPECT_NEAR(losses.front(), 0.6931, 1e-3);
  EXPECT_LT(losses.back(), 0.9 * losses.front());
  EXPECT_TRUE(std::filesystem::exists(Saved("dpo") + "/adapter_config.json"));
}

}  // namespace
}  // namespace quartet
