// On-policy distillation over real processes: a student learns from a teacher alone, without rewards.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class DistillationTest : public ::testing::Test {
 protected:
  DistillationTest() : model_(WriteTinyModel(harness_, "model")) {}

  // A model that was fine-tuned to answer each prompt by one of `answers`, each as often as the others.
  std::string FineTuned(const std::string& name, const std::vector<std::string>& answers) {
    std::vector<std::string> arguments = {"--launch"};
    for (const std::string& set : std::vector<std::string>{
             "run_dir=" + harness_.Path(name), "sft.data=" + Rows(name, answers), "train.train_batch_size=20",
             "train.max_steps=80", "actor.max_len=32", "actor.learning_rate=1e-2", "actor.pretrain=" + model_,
             "actor.dtype=fp32", "services.policy_trainer.threads=1"}) {
      arguments.push_back("--set=" + set);
    }
    const auto outcome = harness_.Run("orchestrator/sft", arguments, absl::Seconds(240));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return harness_.Path(name + "/checkpoints/latest/policy");
  }
  std::string Rows(const std::string& name, const std::vector<std::string>& answers) const {
    std::string rows;
    for (size_t i = 0; i < 40; ++i) {
      absl::StrAppend(&rows, "{\"prompt\": \"", i, "+1=\", \"response\": \"", answers[i % answers.size()], "\"}\n");
    }
    return harness_.Write(name + ".jsonl", rows);
  }

  ProcessHarness::Outcome Distill(const std::string& student, const std::string& teacher,
                                  const std::vector<std::string>& sets = {}) {
    const std::string text = absl::Substitute(R"(
run_dir: "$0"
data { prompt_data: "$1" prompt_max_len: 16 }
actor { pretrain: "$2" dtype: "fp32" learning_rate: 3e-3 lr_scheduler: "constant" }
reference { pretrain: "$3" dtype: "fp32" }
rollout { rollout_batch_size: 32 n_samples_per_prompt: 2 generate_max_len: 8 dtype: "fp32" kv_cache_bytes: 4194304 }
train { max_steps: 40 }
services { rollout { threads: 1 } policy_trainer { ranks: 2 threads: 1 } scorer { threads: 1 } }
)",
                                              harness_.Path("run"), Rows("prompts", {"?"}), student, teacher);
    std::vector<std::string> arguments = {"--launch", "--preset=distill",
                                          "--config=" + harness_.Write("run.textproto", text)};
    for (const std::string& set : sets) arguments.push_back("--set=" + set);
    return harness_.Run(kOrchestrator, arguments, absl::Seconds(240));
  }

  ProcessHarness harness_;
  const std::string model_;
};

TEST_F(DistillationTest, BringsAStudentToItsTeacherWithoutRewards) {
  const std::string teacher = FineTuned("teacher", {"abcd"});
  const auto outcome = Distill(FineTuned("student", {"abcd", "wxyz", "wx", "abyz"}), teacher);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("nothing can be learned")));
  const auto metrics = ReadRecords(harness_.Path("run/metrics.jsonl"));
  ASSERT_EQ(metrics.size(), 40u);
  const auto kl = [&](size_t step) { return metrics[step].at("kl/mean").get<double>(); };
  EXPECT_GT(kl(0), 0.5);
  EXPECT_LT(kl(39), 0.3 * kl(0)) << outcome.output;
  EXPECT_FALSE(metrics.back().contains("reward/mean"));
  EXPECT_EQ(metrics.back().at("reward/groups_without_signal"), 0);

  int taught = 0, last = 0;
  for (const auto& sample : ReadRecords(harness_.Path("run/samples.jsonl"))) {
    if (sample.at("step") < 30) continue;
    ++last;
    EXPECT_TRUE(sample.at("reward").is_null());
    taught += sample.at("response") == "abcd";
  }
  EXPECT_GE(4 * taught, 3 * last) << taught << " of " << last << " say what the teacher does\n" << outcome.output;
  EXPECT_GE(last, 30);
  EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());
}

TEST_F(DistillationTest, BringsAdaptersOfAStudentToItsTeacher) {
  const std::string teacher = FineTuned("teacher", {"abcd"});
  const std::string student = FineTuned("student", {"abcd", "wxyz", "wx", "abyz"});
  const auto outcome = Distill(student, teacher, {"actor.lora.r=8", "actor.lora.alpha=16", "actor.learning_rate=1e-2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto metrics = ReadRecords(harness_.Path("run/metrics.jsonl"));
  ASSERT_EQ(metrics.size(), 40u);
  EXPECT_GT(metrics.front().at("kl/mean"), 0.5) << "the teacher is the student's own model";
  EXPECT_LT(metrics.back().at("kl/mean").get<double>(), 0.3 * metrics.front().at("kl/mean").get<double>())
      << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(harness_.Path("run/checkpoints/latest/policy/adapter_config.json")));
}

TEST_F(DistillationTest, FromTheStudentItselfIsRefused) {
  const auto outcome = Distill(model_, model_);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("reference.pretrain must be another model than actor.pretrain"));
}

}  // namespace
}  // namespace quartet
