// Checkpoints of the loop, and runs that go on after one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/run_folder/checkpoints/checkpoint_search.h"
#include "orchestrator/loop/ppo.h"
#include "orchestrator/loop/testing/ppo_test_base.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

using PpoResumeTest = PpoTest;

TEST_F(PpoResumeTest, SavesPolicyAndCriticTogetherAndKeepsTheNewest) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 5);
  config.mutable_train()->set_save_steps(1);
  config.mutable_train()->set_save_optimizer(true);
  config.mutable_train()->set_max_ckpt_num(2);
  ASSERT_TRUE(Run(config).ok());
  const std::string checkpoints = scratch_.path() + "/run/checkpoints/";
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"latest", "step_4", "step_5"}));
  for (const char* name : {"policy", "policy_state", "critic", "critic_state", "checkpoint.json"}) {
    EXPECT_TRUE(std::filesystem::exists(checkpoints + "step_5/" + name)) << name;
  }
  EXPECT_EQ(std::filesystem::read_symlink(checkpoints + "latest"), "step_5");
  const auto record = ReadCheckpointRecord(checkpoints + "step_5");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->step, 5);
  EXPECT_EQ(record->policy->optimizer_steps, 5);
}

TEST_F(PpoResumeTest, KeepsTheNewestBatches) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 11);
  config.mutable_train()->set_keep_batches(2);
  ASSERT_TRUE(Run(config).ok());
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(scratch_.path() + "/run/batches")) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, (std::set<std::string>{"step_10.safetensors", "step_11.safetensors"}));
}

TEST_F(PpoResumeTest, DoesNotPointAtACheckpointThatIsHalf) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 2);
  config.mutable_train()->set_save_steps(1);
  config.mutable_train()->set_save_optimizer(true);
  // Not on this stack: of gRPC's own locks ThreadSanitizer sees nothing.
  const auto saves = std::make_shared<std::atomic<int>>(0);
  services_.SetHook([saves](const std::string& call) {
    return call == "critic_trainer.SaveCheckpoint" && ++*saves == 2
               ? grpc::Status(grpc::RESOURCE_EXHAUSTED, "No space left on device")
               : grpc::Status::OK;
  });
  const absl::Status status = Run(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("critic_trainer at "), HasSubstr("No space left"), HasSubstr("train.max_ckpt_num"),
                    HasSubstr("The newest whole checkpoint is " + scratch_.path() + "/run/checkpoints/step_1")));
  EXPECT_EQ(std::filesystem::read_symlink(scratch_.path() + "/run/checkpoints/latest"), "step_1");
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() + "/run/checkpoints/step_2")) << "nothing of it is left";
}

TEST_F(PpoResumeTest, LeavesACheckpointThatATrainerMayStillWrite) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_train()->set_save_optimizer(true);
  services_.SetHook([](const std::string& call) {
    return call == "critic_trainer.SaveCheckpoint" ? grpc::Status(grpc::DEADLINE_EXCEEDED, "it takes long")
                                                   : grpc::Status::OK;
  });
  EXPECT_EQ(Run(config).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(std::filesystem::exists(scratch_.path() + "/run/checkpoints/step_1/policy"));
}

TEST_F(PpoResumeTest, GoesOnAfterACheckpointAsIfItHadNeverStopped) {
  RunConfig config = MakeSavingConfig(4);
  ASSERT_TRUE(Run(config).ok());
  config.mutable_train()->set_load_checkpoint(true);
  const auto whole_generations = services_.generations();
  const auto whole_updates = services_.policy_updates();
  const auto whole_batches = services_.policy_batches();

  const auto record = ReadCheckpointRecord(scratch_.path() + "/run/checkpoints/step_2");
  ASSERT_TRUE(record.ok()) << record.status();
  services_.SetOptimizerSteps(2);  // what trainers that loaded step_2 would say
  const absl::StatusOr<PpoSummary> summary = Run(config, *record);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->steps, 4);
  EXPECT_EQ(summary->mean_rewards.size(), 2);

  const auto generations = services_.generations();
  ASSERT_EQ(generations.size(), 6);
  const auto updates = services_.policy_updates();
  const auto batches = services_.policy_batches();
  for (size_t step : {2, 3}) {
    EXPECT_EQ(generations[step + 2].sampling().seed(), whole_generations[step].sampling().seed());
    EXPECT_EQ(updates[step + 2].learning_rate(), whole_updates[step].learning_rate());
    ASSERT_EQ(batches[step + 2].size(), whole_batches[step].size());
    for (size_t i = 0; i < batches[step + 2].size(); ++i) {
      EXPECT_EQ(batches[step + 2][i].SerializeAsString(), whole_batches[step][i].SerializeAsString());
    }
  }
  EXPECT_EQ(Lines("run/metrics.jsonl").size(), 4) << "one object a step, also of a run in two parts";
  EXPECT_EQ(Lines("run/superseded/1/metrics.jsonl").size(), 2);
}

TEST_F(PpoResumeTest, EndsWithACheckpointWhenItIsAskedTo) {
  RunConfig config = MakeSavingConfig(9);
  config.mutable_train()->set_save_steps(100);
  const std::string run = scratch_.path() + "/run";
  // In a step, between two, and before the first: after so many answers to "does it end?".
  for (const auto& [asked, steps] : {std::pair(3, 2), std::pair(4, 2), std::pair(0, 0)}) {
    std::filesystem::remove_all(run);
    services_.SetOptimizerSteps(0);
    int answers = 0;
    const absl::Status stopped = absl::CancelledError("stopped by SIGTERM");
    ending_ = [&, asked = asked] { return answers++ < asked ? absl::OkStatus() : stopped; };
    EXPECT_EQ(Run(config).status(), stopped);
    const auto record = NewestRecord(run + "/checkpoints");
    EXPECT_EQ(record.has_value() ? record->step : 0, steps) << asked;
    EXPECT_EQ(steps == 0 ? 0 : Lines("run/metrics.jsonl").size(), steps) << asked;
  }
}

TEST_F(PpoResumeTest, EndsWithACheckpointToGoOnAfterThoughNoneWasAskedFor) {
  RunConfig config = MakeSavingConfig(9);
  config.mutable_train()->set_save_steps(0);
  config.mutable_train()->set_save_optimizer(false);
  for (const bool continuable : {false, true}) {
    std::filesystem::remove_all(scratch_.path() + "/run");
    services_.SetOptimizerSteps(0);
    ends_continuable_ = continuable;
    int answers = 0;
    ending_ = [&] { return answers++ < 3 ? absl::OkStatus() : absl::CancelledError("stopped by SIGINT"); };
    EXPECT_TRUE(absl::IsCancelled(Run(config).status()));
    const auto record = ReadCheckpointRecord(scratch_.path() + "/run/checkpoints/step_2");
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->policy.has_value(), continuable);
  }
}

TEST_F(PpoResumeTest, LeavesTheEvaluationThatWasDueToTheRunThatGoesOn) {
  RunConfig config = MakeSavingConfig(4);
  config.mutable_train()->set_save_steps(100);
  config.mutable_eval()->add_data(config.data().prompt_data(0));
  config.mutable_train()->set_eval_steps(2);
  int answers = 0;
  ending_ = [&] { return answers++ < 3 ? absl::OkStatus() : absl::CancelledError("stopped by SIGTERM"); };
  EXPECT_EQ(Run(config).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Lines("run/metrics.jsonl").size(), 1) << "the second has no evaluation yet";
  const auto record = NewestRecord(scratch_.path() + "/run/checkpoints");
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->step, 2);
  ending_ = [] { return absl::OkStatus(); };
  config.mutable_train()->set_load_checkpoint(true);
  services_.SetOptimizerSteps(2);
  const absl::StatusOr<PpoSummary> summary = Run(config, *record);
  ASSERT_TRUE(summary.ok()) << summary.status();
  const auto metrics = Lines("run/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 4);
  EXPECT_TRUE(metrics[1].contains("eval/prompts/pass@1")) << metrics[1];
}

TEST_F(PpoResumeTest, GivesUpAnEvaluationThatIsUnderWayForItsCheckpoint) {
  RunConfig config = MakeSavingConfig(4);
  config.mutable_train()->set_save_steps(100);
  config.mutable_eval()->add_data(config.data().prompt_data(0));
  config.mutable_train()->set_eval_steps(2);
  const absl::Status stopped = absl::CancelledError("stopped by SIGTERM");
  told_ = &cancellation_;
  ending_ = [this] { return cancellation_.ending(); };
  cancellation_.PromiseToEnd();
  // The evaluation after the second step is the fourth time that answers are asked for; it would never end.
  std::promise<void> test_is_over;
  const std::shared_future<void> over = test_is_over.get_future();
  int generations = 0;
  services_.SetHook([&, over](const std::string& call) {
    if (call == "rollout.Generate" && ++generations == 4) {
      EXPECT_TRUE(cancellation_.End(stopped));
      over.wait();
    }
    return grpc::Status::OK;
  });
  EXPECT_EQ(Run(config).status(), stopped);
  test_is_over.set_value();
  EXPECT_EQ(Lines("run/metrics.jsonl").size(), 1) << "the second has no evaluation yet";
  const auto record = NewestRecord(scratch_.path() + "/run/checkpoints");
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->step, 2);
  EXPECT_TRUE(record->has_evaluation) << "the run that goes on makes it";
}

TEST_F(PpoResumeTest, ChangesNothingBeforeTheServicesHaveAcceptedTheRun) {
  RunConfig config = MakeSavingConfig(4);
  ASSERT_TRUE(Run(config).ok());
  config.mutable_train()->set_load_checkpoint(true);
  config.mutable_train()->set_max_steps(6);
  const auto before = RunFolderContents();
  services_.SetOptimizerSteps(1);  // not those of the checkpoint
  EXPECT_EQ(Run(config).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RunFolderContents(), before);
  services_.SetOptimizerSteps(4);
  services_.SetHook([](const std::string& call) {
    return call == "scorer.GetInfo" ? grpc::Status(grpc::INTERNAL, "it broke") : grpc::Status::OK;
  });
  EXPECT_EQ(Run(config).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(RunFolderContents(), before);
  // Without a checkpoint that verifies neither.
  services_.SetHook(nullptr);
  for (const char* step : {"step_2", "step_4"}) {
    scratch_.Write(absl::StrCat("run/checkpoints/", step, "/critic_state/manifest.json"), "{}");
  }
  const auto damaged = RunFolderContents();
  EXPECT_THAT(std::string(Run(config).status().message()), AllOf(HasSubstr("step_2"), HasSubstr("step_4")));
  EXPECT_EQ(RunFolderContents(), damaged);
}

TEST_F(PpoResumeTest, CountsStepsThatTeachNothingAcrossContinuations) {
  services_.spoil_score = [](ScoreReply* reply) { reply->set_reward(1); };
  RunConfig config = MakeSavingConfig(4);
  ASSERT_TRUE(Run(config).ok());
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() + "/run/events.jsonl")) << "four are not enough";
  config.mutable_train()->set_load_checkpoint(true);
  for (const int64_t steps : {6, 12}) {
    services_.SetOptimizerSteps(config.train().max_steps());
    config.mutable_train()->set_max_steps(steps);
    ASSERT_TRUE(Run(config).ok());
    const auto events = Lines("run/events.jsonl");
    ASSERT_EQ(events.size(), 1) << "it is said once";
    EXPECT_EQ(events[0]["step"], 4);
    EXPECT_THAT(std::string(events[0]["text"]), HasSubstr("learned from the last 5 steps: all rewards were equal (1)"));
  }
}

TEST_F(PpoResumeTest, GoesOnAfterTheNewestCheckpointThatVerifies) {
  RunConfig config = MakeSavingConfig(4);
  ASSERT_TRUE(Run(config).ok());
  std::filesystem::remove(scratch_.path() + "/run/checkpoints/latest");  // nothing but a hint
  scratch_.Write("run/checkpoints/step_4/checkpoint.json", "");
  config.mutable_train()->set_load_checkpoint(true);
  services_.SetOptimizerSteps(2);
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->mean_rewards.size(), 2);
  EXPECT_EQ(Lines("run/metrics.jsonl").size(), 4);
  EXPECT_TRUE(std::filesystem::exists(scratch_.path() + "/run/superseded/1/checkpoints/step_4/policy_state"));
}

// Both ends are as a kill there leaves the folder.
TEST_F(PpoResumeTest, LosesNoRecordWhenItEndsBetweenSavingAndRecording) {
  for (const std::string point : {"orchestrator.checkpoint.saved", "orchestrator.checkpoint.committed"}) {
    for (const int save : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(point, ", save ", save));
      std::filesystem::remove_all(scratch_.path() + "/run");
      services_.SetOptimizerSteps(0);
      RunConfig config = MakeSavingConfig(4);
      config.mutable_eval()->add_data(config.data().prompt_data(0));
      ASSERT_TRUE(SetFailPoints(absl::StrCat(point, "=error@", save)).ok());
      EXPECT_EQ(Run(config).status().code(), absl::StatusCode::kInternal);
      ASSERT_TRUE(SetFailPoints("").ok());

      const int64_t done = point == "orchestrator.checkpoint.committed" ? 2 * save : 2 * (save - 1);
      config.mutable_train()->set_load_checkpoint(true);
      services_.SetOptimizerSteps(done);
      const absl::StatusOr<PpoSummary> summary = Run(config);
      ASSERT_TRUE(summary.ok()) << summary.status();
      EXPECT_EQ(summary->mean_rewards.size(), static_cast<size_t>(4 - done));
      ASSERT_EQ(summary->after.size(), 1);
      EXPECT_EQ(summary->after.at(0).pass_at_1(), 0.5);
      EXPECT_EQ(Lines("run/samples.jsonl").size(), 16);
      const auto metrics = Lines("run/metrics.jsonl");
      ASSERT_EQ(metrics.size(), 4);
      for (size_t step = 0; step < 4; ++step) {
        EXPECT_EQ(metrics[step]["step"], step);
        EXPECT_EQ(metrics[step]["policy/loss"], 0.25);
        EXPECT_EQ(metrics[step]["memory/rollout/parameters"], 2000);
        EXPECT_EQ(metrics[step].contains("time/checkpoint"), step % 2 == 1);
        EXPECT_EQ(metrics[step].contains("eval/prompts/pass@1"), step == 0 || step == 3) << metrics[step];
      }
    }
  }
}

TEST_F(PpoResumeTest, FailsAtTheFirstSaveWhereTheTrainersHaveAnotherRunFolder) {
  services_.SetCheckpointRoot(scratch_.path() + "/elsewhere");
  const absl::Status status = Run(MakeSavingConfig(6)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("policy_trainer has saved checkpoints/step_2/policy in its own run_dir"),
                    HasSubstr(scratch_.path() + "/run"), HasSubstr("the same run_dir")));
  EXPECT_EQ(services_.generations().size(), 2);
}

TEST_F(PpoResumeTest, RefusesTrainersThatHaveAlreadyTrained) {
  const auto expect_refused = [this](RunConfig config, const std::string& trainer, const std::string& begins) {
    const absl::Status status = Run(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("the ", trainer, " has made 7 optimizer steps")), HasSubstr(begins),
                      HasSubstr("Start the service again"), HasSubstr("train.load_checkpoint")));
    EXPECT_THAT(services_.calls(), Not(Contains("rollout.Generate")));
    std::filesystem::remove_all(scratch_.path() + "/run");
  };
  RunConfig config = services_.MakeConfig(scratch_.path(), 2);
  services_.SetOptimizerSteps(7);
  expect_refused(config, "policy_trainer", "actor.load_checkpoint not set begins after 0");
  // A run that is to be continued, but has no checkpoint yet.
  config.mutable_train()->set_load_checkpoint(true);
  ASSERT_TRUE(RunFolder::Create(config).ok());
  expect_refused(config, "policy_trainer", "actor.load_checkpoint not set begins after 0");
  // States of another number of steps.
  const std::string five = WriteState("five", 5), seven = WriteState("seven", 7);
  config.mutable_actor()->set_load_checkpoint(five);
  expect_refused(config, "policy_trainer", five + " begins after 5");
  config.mutable_actor()->set_load_checkpoint(seven);
  expect_refused(config, "critic_trainer", "critic.load_checkpoint not set begins after 0");
  config.mutable_critic()->set_load_checkpoint(seven);
  EXPECT_TRUE(Run(config).ok());
}

TEST_F(PpoResumeTest, BringsTheRolloutToTheWeightsThatTheTrainerHasLoaded) {
  services_.SetOptimizerSteps(7);
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_actor()->set_load_checkpoint(WriteState("state", 7));
  config.mutable_critic()->set_load_checkpoint(WriteState("state", 7));
  ASSERT_TRUE(Run(config).ok());
  const std::vector<std::string> calls = services_.calls();
  EXPECT_LT(Find(calls, "rollout.CommitUpdate", 0), Find(calls, "rollout.Generate", 0));
}

TEST_F(PpoResumeTest, RefusesToGoOnWithTrainersThatDidNotLoadTheCheckpoint) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 2);
  config.mutable_train()->set_save_steps(1);
  config.mutable_train()->set_save_optimizer(true);
  ASSERT_TRUE(Run(config).ok());
  const auto record = ReadCheckpointRecord(scratch_.path() + "/run/checkpoints/step_2");
  ASSERT_TRUE(record.ok()) << record.status();
  config.mutable_train()->set_load_checkpoint(true);
  config.mutable_train()->set_max_steps(3);
  const auto message = [&] { return std::string(Run(config, *record).status().message()); };
  services_.SetOptimizerSteps(0);
  EXPECT_THAT(message(), AllOf(HasSubstr("policy_trainer has made 0 optimizer steps, the checkpoint 2"),
                               HasSubstr("actor.load_checkpoint")));
  services_.SetOptimizerSteps(2);
  EXPECT_EQ(message(), "");
}

}  // namespace
}  // namespace quartet
