// The loop against services with scripted answers, over real sockets.
#include "orchestrator/ppo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/fail_point.h"
#include "core/config/run_config.h"
#include "core/service/protocol_version.h"
#include "orchestrator/fake_services.h"
#include "orchestrator/tensorboard_reader.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class PpoTest : public ::testing::Test {
 protected:
  PpoTest() {
    services_.SetCheckpointRoot(scratch_.path() + "/run/checkpoints");
    sink_ = std::fopen("/dev/null", "w");
  }
  ~PpoTest() override {
    std::fclose(sink_);
    EXPECT_TRUE(SetFailPoints("").ok());
  }

  // With `resume`, as a run that goes on after it.
  absl::StatusOr<PpoSummary> Run(const RunConfig& config,
                                 const std::optional<CheckpointRecord>& resume = std::nullopt) {
    absl::StatusOr<std::vector<PromptRecord>> prompts =
        LoadPrompts(config.data().prompt_data(), config.data(), 0, true, tokenizer_);
    if (!prompts.ok()) return prompts.status();
    absl::StatusOr<std::optional<EvaluationSet>> evaluation_set = LoadEvaluationSet(config, tokenizer_);
    if (!evaluation_set.ok()) return evaluation_set.status();
    absl::StatusOr<std::unique_ptr<RunFolder>> folder =
        resume.has_value() ? RunFolder::Resume(config, resume->step) : RunFolder::Create(config);
    if (!folder.ok()) return folder.status();
    absl::StatusOr<Services> clients = ConnectServices(config, &cancellation_);
    if (!clients.ok()) return clients.status();
    TerminalView view(sink_, false);
    return RunPpo({.config = config,
                   .tokenizer = tokenizer_,
                   .prompts = *prompts,
                   .evaluation_set = *evaluation_set,
                   .services = *clients,
                   .folder = **folder,
                   .view = view,
                   .resume = resume});
  }

  std::vector<nlohmann::json> Lines(const std::string& name) {
    std::vector<nlohmann::json> lines;
    const std::string text = scratch_.Read(name);
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  // Where `call` first stands among the calls, after position `from`.
  static size_t Find(const std::vector<std::string>& calls, const std::string& call, size_t from) {
    return std::find(calls.begin() + static_cast<std::ptrdiff_t>(from), calls.end(), call) - calls.begin();
  }

  ScratchFolder scratch_;
  FakeServices services_;
  ByteTokenizer tokenizer_;
  Cancellation cancellation_;
  std::FILE* sink_;
};

TEST_F(PpoTest, CallsTheServicesInTheOrderOfTheAlgorithm) {
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 2));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->steps, 2);
  EXPECT_EQ(summary->mean_rewards, (std::vector<double>{0.5, 0.5}));

  const std::vector<std::string> calls = services_.calls();
  size_t position = 0;
  for (int step = 0; step < 2; ++step) {
    const size_t generate = Find(calls, "rollout.Generate", position);
    const size_t publish = Find(calls, "policy_trainer.Publish", generate);
    const size_t begin = Find(calls, "rollout.BeginUpdate", generate);
    const size_t pause = Find(calls, "rollout.Pause", generate);
    const size_t commit = Find(calls, "rollout.CommitUpdate", generate);
    const size_t resume = Find(calls, "rollout.Resume", generate);
    ASSERT_LT(resume, calls.size());
    EXPECT_LT(publish, begin);
    EXPECT_LT(begin, pause);
    EXPECT_LT(pause, commit);
    EXPECT_LT(commit, resume);
    for (const char* reading :
         {"scorer.Score", "scorer.ReferenceLogProbs", "critic_trainer.Values", "policy_trainer.LogProbs"}) {
      const size_t read = Find(calls, reading, generate);
      EXPECT_LT(read, Find(calls, "policy_trainer.Update", generate)) << reading;
      EXPECT_LT(read, Find(calls, "critic_trainer.Update", generate)) << reading;
    }
    EXPECT_LT(Find(calls, "policy_trainer.Update", generate), publish);
    EXPECT_LT(Find(calls, "critic_trainer.Update", generate), publish);
    position = resume;
  }
}

TEST_F(PpoTest, DemandsTheVersionThatTheStepBeforeTrained) {
  ASSERT_TRUE(Run(services_.MakeConfig(scratch_.path(), 3)).ok());
  std::vector<uint64_t> versions;
  std::set<uint64_t> seeds;
  for (const GenerateHeader& header : services_.generations()) {
    versions.push_back(header.policy_version());
    seeds.insert(header.sampling().seed());
  }
  EXPECT_EQ(versions, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(seeds.size(), 3) << "every step draws other noise";
}

TEST_F(PpoTest, AsksForAnswersOfTheLengthsThatAreAllowed) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_rollout()->set_min_tokens(2);
  ASSERT_TRUE(Run(config).ok());
  const std::vector<GenerateHeader> generations = services_.generations();
  ASSERT_EQ(generations.size(), 1);
  EXPECT_EQ(generations[0].sampling().min_tokens(), 2);
  EXPECT_EQ(generations[0].sampling().max_new_tokens(), 5);
}

TEST_F(PpoTest, NumbersTheCallsThatChangeState) {
  ASSERT_TRUE(Run(services_.MakeConfig(scratch_.path(), 2)).ok());
  for (const char* service : {"rollout", "policy_trainer", "critic_trainer"}) {
    uint64_t expected = 0;
    for (const CallIdentity& identity : services_.identities(service)) {
      EXPECT_EQ(identity.sequence(), ++expected) << service;
      EXPECT_FALSE(identity.run_id().empty());
      EXPECT_GT(identity.epoch(), 0);
    }
    EXPECT_GT(expected, 0) << service;
  }
}

TEST_F(PpoTest, SendsWhatTheLossNeeds) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_train()->set_train_batch_size(4);
  config.mutable_algorithm()->set_max_epochs(2);
  config.mutable_algorithm()->set_advantage_normalization("none");
  ASSERT_TRUE(Run(config).ok());
  const auto batches = services_.policy_batches();
  ASSERT_EQ(batches.size(), 4) << "8 sequences in steps of 4, twice";
  ASSERT_EQ(services_.critic_updates().size(), 4);
  for (const auto& batch : batches) {
    ASSERT_EQ(batch.size(), 4);
    double weights = 0;
    for (const TrainingSequence& sequence : batch) {
      // Three action tokens, KL 0.25 each: rewards -0.0025, -0.0025 and -0.0025 (+ 1); values 0.5.
      ASSERT_EQ(sequence.advantages_size(), 3);
      const float scored = sequence.advantages(2) > 0 ? 1.0f : 0.0f;
      EXPECT_NEAR(sequence.advantages(2), scored - 0.0025f - 0.5f, 1e-6);
      EXPECT_NEAR(sequence.advantages(0), scored - 3 * 0.0025f - 0.5f, 1e-6);
      EXPECT_NEAR(sequence.returns(0), scored - 3 * 0.0025f, 1e-6);
      EXPECT_EQ(sequence.old_log_probs(1), -1.0f);
      EXPECT_EQ(sequence.old_values(1), 0.5f);
      for (float weight : sequence.loss_weights()) weights += weight;
    }
    EXPECT_NEAR(weights, 1.0, 1e-6);
  }
  const PolicyUpdateHeader header = services_.policy_updates().front();
  EXPECT_EQ(header.loss().kind(), PolicyLossConfig::KIND_PPO);
  EXPECT_FLOAT_EQ(header.loss().eps_clip_low(), 0.2f);
  EXPECT_EQ(header.temperature(), 1.0f);
}

TEST_F(PpoTest, WritesMetricsSamplesAndHeldOutProblems) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 3);
  config.mutable_eval()->set_data(config.data().prompt_data());
  config.mutable_train()->set_save_steps(2);
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();

  const auto metrics = Lines("run/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 3) << "one object a step";
  for (size_t step = 0; step < metrics.size(); ++step) {
    const nlohmann::json& line = metrics[step];
    EXPECT_EQ(line["step"], step);
    EXPECT_EQ(line["policy_version"], step);
    for (const char* name : {"reward/mean",
                             "reward/std",
                             "kl/mean",
                             "response_length/mean",
                             "rollout/log_prob_diff_mean",
                             "rollout/log_prob_diff_p99",
                             "rollout/log_prob_diff_max",
                             "policy/loss",
                             "policy/clip_fraction",
                             "policy/entropy",
                             "policy/grad_norm",
                             "policy/tokens_per_second",
                             "critic/loss",
                             "critic/explained_variance",
                             "time/generate",
                             "time/score",
                             "time/values",
                             "time/policy_update",
                             "time/critic_update",
                             "time/weight_sync",
                             "time/weight_sync_pause",
                             "time/step",
                             "tokens/generated",
                             "memory/rollout/parameters",
                             "memory/scorer/parameters"}) {
      EXPECT_TRUE(line.contains(name) && line[name].is_number()) << name;
    }
    EXPECT_EQ(line["reward/mean"], 0.5);
    EXPECT_EQ(line["reward/std"], 0.5);
    EXPECT_EQ(line["kl/mean"], 0.25);
    EXPECT_EQ(line["response_length/mean"], 3);
    EXPECT_EQ(line["tokens/generated"], 24);
    EXPECT_EQ(line["memory/policy_trainer/parameters"], 2000) << "the largest over the ranks";
    EXPECT_EQ(line["memory/policy_trainer/total"], 2500);
    EXPECT_EQ(line["memory/policy_trainer/host/optimizer"], 3000);
    EXPECT_FALSE(line.contains("memory/policy_trainer/optimizer")) << "tiers are kept apart";
    EXPECT_EQ(line["policy/loss"], 0.25);
    EXPECT_EQ(line["critic/loss"], 0.75);
    EXPECT_EQ(line["policy/micro_batches"], 3);
    EXPECT_EQ(line["policy/balance"], 0.5);
    EXPECT_EQ(line["critic/micro_batches"], 4);
    EXPECT_EQ(line["critic/balance"], 0.75);
    const int64_t optimizer_steps = config.algorithm().max_epochs() * config.rollout().rollout_batch_size() *
                                    config.rollout().n_samples_per_prompt() / config.train().train_batch_size();
    EXPECT_NEAR(line["critic/tokens_per_second"].get<double>() * line["time/critic_update"].get<double>(),
                2000.0 * static_cast<double>(optimizer_steps), 1e-3);
  }
  EXPECT_EQ(metrics[0]["eval/prompts/pass@1"], 0.5);
  EXPECT_FALSE(metrics[1].contains("eval/prompts/pass@1"));
  EXPECT_EQ(metrics[2]["eval/prompts/pass@1"], 0.5);
  EXPECT_EQ(*summary->before->pass_at_1, 0.5);
  EXPECT_EQ(*summary->after->pass_at_1, 0.5);

  const auto samples = Lines("run/samples.jsonl");
  ASSERT_EQ(samples.size(), 12);
  EXPECT_THAT(samples[0]["prompt"].get<std::string>(), HasSubstr("say "));
  EXPECT_EQ(samples[0]["response"], "ok") << "special tokens are not shown";
  EXPECT_EQ(samples[0]["label"], "ok");
  EXPECT_EQ(samples[0]["kl"], 0.25);
  EXPECT_EQ(samples[0]["finish_reason"], "stop");
  EXPECT_TRUE(samples[0]["parts"].contains("exact_match"));

  const auto heldout = Lines("run/heldout.jsonl");
  ASSERT_EQ(heldout.size(), 6);
  EXPECT_EQ(heldout[5], (nlohmann::json{{"prompt", "say 5"}, {"label", "ok"}}));

  EXPECT_TRUE(std::filesystem::exists(scratch_.path() + "/run/checkpoints/step_2/policy"));
  EXPECT_EQ(std::filesystem::read_symlink(scratch_.path() + "/run/checkpoints/latest"), "step_3");
  EXPECT_EQ(summary->checkpoint, "checkpoints/step_3/policy");
}

TEST_F(PpoTest, CountsTheOptimizerStepsThatWereSkipped) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 2);
  config.mutable_train()->set_train_batch_size(4);
  config.mutable_algorithm()->set_max_epochs(2);
  // Of the four optimizer steps of each PPO step, in the first the policy skips two and the critic one.
  // The counters are not on this stack: of gRPC's own locks ThreadSanitizer sees nothing.
  services_.spoil_policy_update = [update = 0](PolicyUpdateReply* reply) mutable {
    if (++update != 2 && update != 3) return;
    reply->set_skipped(true);
    reply->set_grad_norm(INFINITY);
  };
  services_.spoil_critic_update = [update = 0](CriticUpdateReply* reply) mutable {
    if (++update != 1) return;
    reply->set_skipped(true);
    reply->set_loss(NAN);
  };
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();

  const auto metrics = Lines("run/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 2);
  EXPECT_EQ(metrics[0]["policy/skipped"], 2);
  EXPECT_EQ(metrics[0]["critic/skipped"], 1);
  EXPECT_EQ(metrics[1]["policy/skipped"], 0);
  EXPECT_EQ(metrics[1]["critic/skipped"], 0);

  std::vector<std::pair<float, float>> shown;  // by TensorBoard, a step: of the policy and of the critic
  for (const auto& entry : std::filesystem::directory_iterator(scratch_.path() + "/run")) {
    const std::string name = entry.path().filename();
    if (name.find("tfevents") == std::string::npos) continue;
    const auto events = ReadTensorBoardEvents(scratch_.Read("run/" + name));
    ASSERT_TRUE(events.ok()) << events.status();
    for (const TensorBoardEvent& event : *events) {
      std::map<std::string, float> scalars;
      for (const auto& value : event.summary().value()) scalars[value.tag()] = value.simple_value();
      if (scalars.empty()) continue;
      ASSERT_TRUE(scalars.count("policy/skipped") == 1 && scalars.count("critic/skipped") == 1);
      shown.emplace_back(scalars["policy/skipped"], scalars["critic/skipped"]);
    }
  }
  EXPECT_EQ(shown, (std::vector<std::pair<float, float>>{{2, 1}, {0, 0}}));
}

TEST_F(PpoTest, EndsAfterThreeSkippedOptimizerStepsInARow) {
  services_.spoil_critic_update = [](CriticUpdateReply* reply) { reply->set_skipped(true); };
  const absl::Status status = Run(services_.MakeConfig(scratch_.path(), 5)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("critic was not finite 3 optimizer steps in a row"), HasSubstr("critic.learning_rate")));
  EXPECT_EQ(Lines("run/metrics.jsonl").size(), 2);
}

TEST_F(PpoTest, SavesPolicyAndCriticTogetherAndKeepsTheNewest) {
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
  const auto record = FindLatestCheckpoint(scratch_.path() + "/run");
  ASSERT_TRUE(record.ok() && record->has_value()) << record.status();
  EXPECT_EQ((*record)->step, 5);
  EXPECT_EQ((*record)->policy->optimizer_steps, 5);
}

TEST_F(PpoTest, DoesNotPointAtACheckpointThatIsHalf) {
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
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("critic_trainer at "), HasSubstr("No space left")));
  EXPECT_EQ(std::filesystem::read_symlink(scratch_.path() + "/run/checkpoints/latest"), "step_1");
}

TEST_F(PpoTest, GoesOnAfterACheckpointAsIfItHadNeverStopped) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 4);
  config.mutable_train()->set_save_steps(2);
  config.mutable_train()->set_save_optimizer(true);
  ASSERT_TRUE(Run(config).ok());
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
}

TEST_F(PpoTest, BringsTheRolloutToTheWeightsThatTheTrainerHasLoaded) {
  services_.SetOptimizerSteps(7);  // actor.load_checkpoint
  ASSERT_TRUE(Run(services_.MakeConfig(scratch_.path(), 1)).ok());
  const std::vector<std::string> calls = services_.calls();
  EXPECT_LT(Find(calls, "rollout.CommitUpdate", 0), Find(calls, "rollout.Generate", 0));
}

TEST_F(PpoTest, RefusesToGoOnWithOtherDataOrTrainersThatDidNotLoadTheCheckpoint) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 2);
  config.mutable_train()->set_save_steps(1);
  config.mutable_train()->set_save_optimizer(true);
  ASSERT_TRUE(Run(config).ok());
  const auto found = FindLatestCheckpoint(scratch_.path() + "/run");
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  const CheckpointRecord record = **found;
  config.mutable_train()->set_max_steps(3);
  const auto message = [&](const CheckpointRecord& resume) {
    return std::string(Run(config, resume).status().message());
  };
  CheckpointRecord other = record;
  other.seed = 1;
  EXPECT_THAT(message(other), AllOf(HasSubstr("step_2"), HasSubstr("seed 1, not 42")));
  other = record;
  other.rollout_batch_size = 5;
  EXPECT_THAT(message(other), HasSubstr("rollout_batch_size 5, not 4"));
  other = record;
  ++other.prompts_hash;
  EXPECT_THAT(message(other), HasSubstr("other prompts"));
  services_.SetOptimizerSteps(0);
  EXPECT_THAT(message(record), AllOf(HasSubstr("policy_trainer has made 0 optimizer steps, the checkpoint 2"),
                                     HasSubstr("actor.load_checkpoint")));
  services_.SetOptimizerSteps(2);
  EXPECT_EQ(message(record), "");
}

TEST_F(PpoTest, AsksNoReferenceWithoutAKlPenalty) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_algorithm()->mutable_kl()->set_init_kl_coef(0);
  ASSERT_TRUE(Run(config).ok());
  EXPECT_THAT(services_.calls(), Not(Contains("scorer.ReferenceLogProbs")));
  EXPECT_FALSE(Lines("run/metrics.jsonl")[0].contains("kl/mean"));
}

TEST_F(PpoTest, EndsInAnErrorWhenAWeightSyncIsSuppressed) {
  ASSERT_TRUE(SetFailPoints("orchestrator.weight_sync.skip=trip@2").ok());
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 5));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("policy version 2 was asked for, but 1 is in use"));
  EXPECT_EQ(Lines("run/metrics.jsonl").size(), 2) << "no step was made of stale samples";
}

TEST_F(PpoTest, EndsInAnErrorWhenTheLastWeightSyncIsSuppressed) {
  ASSERT_TRUE(SetFailPoints("orchestrator.weight_sync.skip=trip@2").ok());
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 2));
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("a weight sync was lost"));
}

TEST_F(PpoTest, GivesUpAStagedVersionThatDoesNotVerify) {
  services_.SetHook([](const std::string& call) {
    return call == "rollout.BeginUpdate" ? grpc::Status(grpc::DATA_LOSS, "hash of model.norm.weight differs")
                                         : grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 2));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("model.norm.weight"));
  EXPECT_THAT(services_.calls(), Contains("rollout.AbortUpdate"));
}

TEST_F(PpoTest, LeavesNoPauseBehindAWeightSyncThatFails) {
  // An error of Pause: its answer was lost, after it had come into effect.
  for (const std::string failing : {"rollout.Pause", "rollout.CommitUpdate"}) {
    SCOPED_TRACE(failing);
    std::filesystem::remove_all(scratch_.path() + "/run");
    services_.SetHook([failing](const std::string& call) {
      return call == failing ? grpc::Status(grpc::INTERNAL, "it broke") : grpc::Status::OK;
    });
    const absl::Status status = Run(services_.MakeConfig(scratch_.path(), 2)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("it broke"));
    EXPECT_FALSE(services_.paused());
    EXPECT_THAT(services_.calls(), Contains("rollout.AbortUpdate"));
  }
}

TEST_F(PpoTest, LeavesNoPauseBehindWhenItIsCancelledDuringACommit) {
  services_.SetHook([this](const std::string& call) {
    if (call == "rollout.CommitUpdate") cancellation_.Cancel(absl::CancelledError("stopped by SIGINT"));
    return grpc::Status::OK;
  });
  EXPECT_EQ(Run(services_.MakeConfig(scratch_.path(), 2)).status(), absl::CancelledError("stopped by SIGINT"));
  EXPECT_FALSE(services_.paused());
}

TEST_F(PpoTest, EndsThePauseThatAnOrchestratorBeforeItLeft) {
  services_.SetPaused(true);
  EXPECT_TRUE(Run(services_.MakeConfig(scratch_.path(), 1)).ok());
  // The rollout has version 1 now, and gets the weights of this run's policy before it goes on.
  std::filesystem::remove_all(scratch_.path() + "/run");
  services_.SetPaused(true);
  const size_t before = services_.calls().size();
  EXPECT_TRUE(Run(services_.MakeConfig(scratch_.path(), 1)).ok());
  const std::vector<std::string> calls = services_.calls();
  EXPECT_LT(Find(calls, "rollout.CommitUpdate", before), Find(calls, "rollout.Resume", before));
}

TEST_F(PpoTest, SaysThatTheRolloutIsStillPausedWhereItCannotBeResumed) {
  // Not on this stack: of gRPC's own locks ThreadSanitizer sees nothing.
  services_.SetHook([resumes = std::make_shared<std::atomic<int>>(0)](const std::string& call) {
    return call == "rollout.Resume" && ++*resumes == 2 ? grpc::Status(grpc::FAILED_PRECONDITION, "the rollout sleeps")
                                                       : grpc::Status::OK;
  });
  const absl::Status status = Run(services_.MakeConfig(scratch_.path(), 2)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rollout at "), HasSubstr("Resume: the rollout sleeps"), HasSubstr("still paused")));
}

TEST_F(PpoTest, StopsWhenTrainerAndRolloutDisagree) {
  services_.trainer_log_prob = -2;
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 2));
  EXPECT_THAT(std::string(summary.status().message()),
              AllOf(HasSubstr("differ by 1 on average"), HasSubstr("train.max_log_prob_diff_mean")));
  EXPECT_THAT(services_.calls(), Not(Contains("policy_trainer.Update")));
}

TEST_F(PpoTest, NamesTheServiceThatIsNotThere) {
  services_.Kill("scorer");
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 1));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(summary.status().message()),
              AllOf(HasSubstr("scorer at " + services_.address("scorer")), HasSubstr("GetInfo"),
                    HasSubstr("bazel run //scorer"), HasSubstr("--launch")));
}

TEST_F(PpoTest, EndsInAnErrorWhenAServiceDiesInTheMiddleOfAStep) {
  std::promise<void> in_update;
  std::once_flag once;
  std::thread killer([&] {
    in_update.get_future().wait();
    services_.Kill("critic_trainer");
  });
  services_.SetHook([&](const std::string& call) {
    if (call == "critic_trainer.Update") {
      std::call_once(once, [&] { in_update.set_value(); });
      absl::SleepFor(absl::Milliseconds(300));
    }
    return grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 3));
  std::call_once(once, [&] { in_update.set_value(); });
  killer.join();
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("critic_trainer at "));
}

TEST_F(PpoTest, DoesNotWaitLongerThanTheDeadline) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_train()->set_call_timeout_seconds(1);
  services_.SetHook([](const std::string& call) {
    if (call == "critic_trainer.Values") absl::SleepFor(absl::Seconds(3));
    return grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(config);
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(summary.status().message()),
              AllOf(HasSubstr("critic_trainer at "), HasSubstr("Values"), HasSubstr("call_timeout_seconds is 1")));
}

TEST_F(PpoTest, EndsWithTheReasonWhenItIsCancelled) {
  services_.SetHook([this](const std::string& call) {
    if (call == "scorer.Score") cancellation_.Cancel(absl::CancelledError("stopped by SIGINT"));
    return grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 1));
  EXPECT_EQ(summary.status(), absl::CancelledError("stopped by SIGINT"));
}

TEST_F(PpoTest, TakesNoRepliesThatAreNotWhole) {
  const auto message = [this] { return std::string(Run(services_.MakeConfig(scratch_.path(), 1)).status().message()); };
  const auto again = [this] { std::filesystem::remove_all(scratch_.path() + "/run"); };

  services_.spoil_generated = [](GeneratedSequence* s) { s->mutable_policy_versions()->Set(1, 7); };
  EXPECT_THAT(message(), HasSubstr("a token of policy version 7 instead of 0"));
  again();
  services_.spoil_generated = [](GeneratedSequence* s) { s->set_sample(0); };
  EXPECT_THAT(message(), HasSubstr("came twice"));
  again();
  services_.spoil_generated = [](GeneratedSequence* s) { s->mutable_log_probs()->RemoveLast(); };
  EXPECT_THAT(message(), HasSubstr("2 log-probabilities"));
  again();
  services_.spoil_generated = nullptr;
  services_.spoil_values = [](TokenValues* v) { v->mutable_values()->Set(0, NAN); };
  EXPECT_THAT(message(), HasSubstr("not finite"));
  again();
  services_.spoil_values = [](TokenValues* v) { v->mutable_values()->RemoveLast(); };
  EXPECT_THAT(message(), HasSubstr("3 action tokens but 2 values"));
  again();
  services_.spoil_values = [](TokenValues* v) { v->set_index(0); };
  EXPECT_THAT(message(), HasSubstr("answered twice"));
}

TEST_F(PpoTest, RefusesServicesThatDoNotFitTogether) {
  const auto message = [this] { return std::string(Run(services_.MakeConfig(scratch_.path(), 1)).status().message()); };
  const auto again = [this] { std::filesystem::remove_all(scratch_.path() + "/run"); };

  services_.spoil_info = [](ServiceInfo* info) {
    if (info->service() == "scorer") info->set_protocol_version(99);
  };
  EXPECT_THAT(message(),
              AllOf(HasSubstr("scorer"), HasSubstr("99"), HasSubstr(absl::StrCat("speaks ", kProtocolVersion))));
  again();
  services_.spoil_info = [](ServiceInfo* info) {
    if (info->service() == "critic_trainer") (*info->mutable_vocab_size())["model"] = 256;
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("critic_trainer's model has 256"), HasSubstr("128")));
  again();
  services_.spoil_info = [](ServiceInfo* info) {
    for (auto& [role, size] : *info->mutable_vocab_size()) size = 100;
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("vocabulary of 100"), HasSubstr("the tokenizer has 128")));
  again();
  services_.spoil_info = [](ServiceInfo* info) { info->set_max_model_len(12); };
  EXPECT_THAT(message(), AllOf(HasSubstr("at most 12"), HasSubstr("13")));
  again();
  services_.spoil_info = [](ServiceInfo* info) {
    if (info->service() == "rollout") info->set_service("scorer");
  };
  EXPECT_THAT(message(), HasSubstr("is the service \"scorer\", not \"rollout\""));
}

TEST_F(PpoTest, PassesOnWhatAnUpdateFailedOf) {
  services_.SetHook([](const std::string& call) {
    return call == "policy_trainer.Update" ? grpc::Status(grpc::INTERNAL, "rank 1: out of memory") : grpc::Status::OK;
  });
  EXPECT_THAT(std::string(Run(services_.MakeConfig(scratch_.path(), 1)).status().message()),
              AllOf(HasSubstr("policy_trainer at "), HasSubstr("Update: rank 1: out of memory")));
}

TEST(PpoSteps, FollowFromTheDataWhereTheyAreNotGiven) {
  RunConfig config;
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  config.mutable_rollout()->set_rollout_batch_size(4);
  config.mutable_train()->set_num_episodes(3);
  EXPECT_EQ(PpoSteps(config, 10), 8);
  EXPECT_EQ(PpoSteps(config, 1), 1);
  config.mutable_train()->set_max_steps(5);
  EXPECT_EQ(PpoSteps(config, 10), 5);
}

}  // namespace
}  // namespace quartet
