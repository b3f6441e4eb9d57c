// What the loop asks of the services, and what it writes.
#include "orchestrator/loop/ppo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "core/config/run_config.h"
#include "core/rl/testing/token_arrays.h"
#include "core/run_folder/testing/tensorboard_reader.h"
#include "orchestrator/loop/testing/ppo_test_base.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

bool EndsWithAny(const std::string& text, const std::vector<std::string>& ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return text.ends_with(end); });
}

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
    const size_t commit = Find(calls, "rollout.CommitUpdate", generate);
    ASSERT_LT(commit, calls.size());
    EXPECT_LT(publish, begin);
    EXPECT_LT(begin, commit);
    for (const char* reading :
         {"scorer.Score", "scorer.ReferenceLogProbs", "critic_trainer.Values", "policy_trainer.LogProbs"}) {
      const size_t read = Find(calls, reading, generate);
      EXPECT_LT(read, Find(calls, "policy_trainer.Update", generate)) << reading;
      EXPECT_LT(read, Find(calls, "critic_trainer.Update", generate)) << reading;
    }
    EXPECT_LT(Find(calls, "policy_trainer.Update", generate), publish);
    EXPECT_LT(Find(calls, "critic_trainer.Update", generate), publish);
    position = commit;
  }
}

TEST_F(PpoTest, HasRolloutAndTrainersHoldTheirMemoryInTurn) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 3);
  config.mutable_rollout()->set_enable_sleep(true);
  config.mutable_algorithm()->set_critic_warmup_steps(2);
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();
  std::vector<std::string> calls;
  for (const std::string& call : services_.calls()) {
    if (!EndsWithAny(call, {"GetInfo", "Score", "LogProbs", "Values"})) calls.push_back(call);
  }
  const std::vector<std::string> wakes = {"policy_trainer.Sleep", "critic_trainer.Sleep", "rollout.WakeUp"};
  std::vector<std::string> expected = wakes;
  const auto add = [&expected](const std::vector<std::string>& more) {
    expected.insert(expected.end(), more.begin(), more.end());
  };
  add({"rollout.Resume"});
  for (int step = 0; step < 2; ++step) {  // the policy stays as it was read
    add({"rollout.Generate", "rollout.Sleep at level 2", "critic_trainer.Sleep", "policy_trainer.Sleep",
         "critic_trainer.Update"});
    add(wakes);
    add({"rollout.Resume"});
  }
  // What the critic has is asked for first.
  add({"rollout.Generate", "rollout.Sleep at level 2", "critic_trainer.Sleep", "policy_trainer.Update",
       "policy_trainer.Sleep", "critic_trainer.Update", "policy_trainer.Publish"});
  add(wakes);
  add({"rollout.BeginUpdate", "rollout.CommitUpdate", "rollout.Resume", "policy_trainer.SaveCheckpoint",
       "policy_trainer.Sleep", "policy_trainer.Sleep", "critic_trainer.Sleep"});
  EXPECT_EQ(calls, expected);
}

TEST_F(PpoTest, LeavesARolloutOfAdaptersItsModelWhileItSleeps) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_rollout()->set_enable_sleep(true);
  config.mutable_actor()->mutable_lora()->set_r(8);
  ASSERT_TRUE(Run(config).ok());
  EXPECT_THAT(services_.calls(), Contains("rollout.Sleep at level 1"));
}

// As a run that was killed amid a step leaves it where services outlive their run.
TEST_F(PpoTest, WakesARolloutThatARunBeforeHasLeftAsleep) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_rollout()->set_enable_sleep(true);
  services_.SetPaused(true, /*asleep=*/true);
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();
  const std::vector<std::string> calls = services_.calls();
  EXPECT_LT(Find(calls, "rollout.Resume", 0), Find(calls, "rollout.Generate", 0));
}

TEST_F(PpoTest, SaysBesideTheStepsHowMuchTimeIsLeft) {
  ASSERT_TRUE(Run(services_.MakeConfig(scratch_.path(), 3)).ok());
  const std::vector<std::string> lines = Shown();
  ASSERT_EQ(lines.size(), 4) << "a head and three steps";
  EXPECT_THAT(lines[1], Not(HasSubstr("left"))) << "the first step does not say how long others take";
  EXPECT_THAT(lines[2], EndsWith(" s left"));
  EXPECT_THAT(lines[3], Not(HasSubstr("left")));
}

TEST_F(PpoTest, SaysThatClippedRewardsTeachNothing) {
  services_.spoil_score = [](ScoreReply* reply) { reply->set_reward(reply->reward() > 0 ? 100 : 20); };
  ASSERT_TRUE(Run(services_.MakeConfig(scratch_.path(), 6)).ok());
  std::vector<std::string> warnings;
  for (const nlohmann::json& event : Lines("run/events.jsonl")) warnings.push_back(event["text"]);
  EXPECT_THAT(warnings, testing::ElementsAre(HasSubstr("rewards differ, and are equal once they are clipped")));
  EXPECT_EQ(Lines("run/metrics.jsonl").back()["reward/clipped"], 1);
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

// Else services would take it for one that the last has followed, where the clock was set back between the two.
TEST_F(PpoTest, ComesAfterEveryOrchestratorThatItsServicesHaveSeen) {
  constexpr uint64_t kSeen = uint64_t{1} << 60;
  services_.spoil_info = [](ServiceInfo* info) {
    if (info->service() == "critic_trainer") info->mutable_last_applied()->set_epoch(kSeen);
  };
  ASSERT_TRUE(Run(services_.MakeConfig(scratch_.path(), 2)).ok());
  for (const char* service : {"rollout", "policy_trainer", "critic_trainer"}) {
    for (const CallIdentity& identity : services_.identities(service)) EXPECT_EQ(identity.epoch(), kSeen + 1);
    EXPECT_FALSE(services_.identities(service).empty());
  }
}

TEST_F(PpoTest, SendsWhatTheLossNeeds) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_train()->set_train_batch_size(4);
  config.mutable_train()->set_critic_train_batch_size(2);
  config.mutable_algorithm()->set_max_epochs(2);
  config.mutable_algorithm()->set_critic_epochs(3);
  config.mutable_algorithm()->set_advantage_normalization("none");
  ASSERT_TRUE(Run(config).ok());
  const auto batches = services_.policy_batches();
  ASSERT_EQ(batches.size(), 4) << "8 sequences in steps of 4, twice";
  ASSERT_EQ(services_.critic_updates().size(), 12) << "in steps of 2, three times";
  for (const auto& batch : batches) {
    ASSERT_EQ(batch.size(), 4);
    double weights = 0;
    for (const TrainingSequence& sequence : batch) {
      // Three action tokens, KL 0.25 each: rewards -0.0025, -0.0025 and -0.0025 (+ 1); values 0.5.
      ASSERT_EQ(ArrayOf(sequence, kAdvantages).size(), 3);
      const float scored = ArrayOf(sequence, kAdvantages)[2] > 0 ? 1.0f : 0.0f;
      EXPECT_NEAR(ArrayOf(sequence, kAdvantages)[2], scored - 0.0025f - 0.5f, 1e-6);
      EXPECT_NEAR(ArrayOf(sequence, kAdvantages)[0], scored - 3 * 0.0025f - 0.5f, 1e-6);
      EXPECT_EQ(ArrayOf(sequence, kOldLogProbs)[1], -1.0f);
      for (float weight : ArrayOf(sequence, kLossWeights)) weights += weight;
    }
    EXPECT_NEAR(weights, 1.0, 1e-6);
  }
  for (const auto& batch : services_.critic_batches()) {
    for (const TrainingSequence& sequence : batch) {
      EXPECT_EQ(ArrayOf(sequence, kOldValues)[1], 0.5f);
      EXPECT_NEAR(std::abs(ArrayOf(sequence, kReturns)[0] + 3 * 0.0025f - 0.5f), 0.5f, 1e-6) << "scored 0 or 1";
    }
  }
  const PolicyUpdateHeader header = services_.policy_updates().front();
  EXPECT_EQ(header.loss().kind(), PolicyLossConfig::KIND_PPO);
  EXPECT_FLOAT_EQ(header.loss().eps_clip_low(), 0.2f);
  EXPECT_EQ(header.temperature(), 1.0f);
}

TEST_F(PpoTest, WritesMetricsSamplesAndHeldOutProblems) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 3);
  config.mutable_eval()->add_data(config.data().prompt_data(0));
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
                             "time/reference",
                             "time/values",
                             "time/forwards",
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
    EXPECT_EQ(line["time/weight_sync_pause"], 0.125);
    EXPECT_EQ(line["memory/policy_trainer/parameters"], 2000) << "the largest over the ranks";
    EXPECT_EQ(line["memory/policy_trainer/total"], 2500);
    EXPECT_EQ(line["memory/policy_trainer/host/optimizer"], 3000);
    EXPECT_FALSE(line.contains("memory/policy_trainer/optimizer")) << "tiers are kept apart";
    EXPECT_EQ(line["policy/loss"], 0.25);
    EXPECT_EQ(line["critic/loss"], 0.75);
    EXPECT_EQ(line["policy/shared_tokens"], 0.75);
    EXPECT_EQ(line["critic/shared_tokens"], 0);
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
  EXPECT_EQ(*summary->before.at(0).pass_at_1(), 0.5);
  EXPECT_EQ(*summary->after.at(0).pass_at_1(), 0.5);

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

TEST_F(PpoTest, EvaluatesByTheSourcesOfRewardsThatArePromptsOwn) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_reward()->mutable_source(0)->add_only("x");
  config.mutable_reward()->mutable_source(0)->add_only("prompts");
  RewardSource* source = config.mutable_reward()->add_source();
  source->set_rule("finished");
  source->add_only("y");
  EvalSet* set = config.mutable_eval()->add_set();
  set->set_name("mixed");
  set->set_data(scratch_.Write("mixed.jsonl", R"({"prompt": "a", "label": "ok", "data_source": "x"}
{"prompt": "b", "data_source": "y"}
)"));
  set->set_temperature(0.5);
  set->set_n_samples_per_prompt(2);
  const absl::Status resolved = ResolveRunConfig(&config, "");
  ASSERT_TRUE(resolved.ok()) << resolved;
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();
  const nlohmann::json metrics = Lines("run/metrics.jsonl").front();
  EXPECT_EQ(metrics["eval/mixed/source/x/pass@1"], 0.5);
  EXPECT_FALSE(metrics.contains("eval/mixed/source/y/pass@1")) << "nothing tells what is right";
  EXPECT_FALSE(metrics.contains("eval/mixed/pass@1"));
  EXPECT_EQ(metrics["eval/mixed/source/y/reward"], 0.5);
}

TEST_F(PpoTest, EvaluatesSeveralSetsWithSeveralAnswers) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_eval()->add_data(config.data().prompt_data(0));
  EvalSet* set = config.mutable_eval()->add_set();
  set->set_name("hard");
  set->set_data(scratch_.Write("hard.jsonl", R"({"prompt": "a", "label": "ok", "data_source": "x"}
{"prompt": "b", "label": "ok", "data_source": "y"}
)"));
  set->set_temperature(0.5);
  set->set_n_samples_per_prompt(3);
  for (const int k : {1, 2, 3}) set->add_k(k);
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();

  // Answers 0, 2 and 4 of six are right: two of three, and one of three.
  const nlohmann::json metrics = Lines("run/metrics.jsonl").front();
  EXPECT_NEAR(metrics["eval/hard/pass@1"].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(metrics["eval/hard/pass@2"].get<double>(), (1 + 2.0 / 3) / 2, 1e-12);
  EXPECT_EQ(metrics["eval/hard/pass@3"], 1);
  EXPECT_NEAR(metrics["eval/hard/maj@3"].get<double>(), 0.5, 1e-12) << "all vote alike";
  EXPECT_NEAR(metrics["eval/hard/reward"].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(metrics["eval/hard/response_length"].get<double>(), 3, 1e-12);
  EXPECT_NEAR(metrics["eval/hard/source/x/pass@1"].get<double>(), 2.0 / 3, 1e-12);
  EXPECT_NEAR(metrics["eval/hard/source/y/pass@1"].get<double>(), 1.0 / 3, 1e-12);
  EXPECT_EQ(metrics["eval/prompts/pass@1"], 0.5);
  EXPECT_FALSE(metrics.contains("eval/prompts/maj@1"));

  const auto evaluations = Lines("run/evaluations.jsonl");
  ASSERT_EQ(evaluations.size(), 4);
  EXPECT_EQ(evaluations[0]["step"], -1);
  EXPECT_EQ(evaluations[0]["set"], "prompts");
  EXPECT_EQ(evaluations[3]["step"], 0);
  EXPECT_EQ(evaluations[3]["model"], "run/step_1");
  EXPECT_EQ(evaluations[3]["set"], "hard");
  EXPECT_THAT(Shown(), testing::Contains(testing::HasSubstr("evaluation of run/step_1: hard: pass@1 50.0 %")));
  EXPECT_EQ(evaluations[3]["n_samples_per_prompt"], 3);
  EXPECT_EQ(evaluations[3]["pass@3"], 1);
}

TEST_F(PpoTest, CarriesAnswersOfHundredsOfThousandsOfTokens) {
  constexpr int kTokens = 200'000;
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_rollout()->set_generate_max_len(2 * kTokens);
  services_.spoil_info = [](ServiceInfo* info) { info->set_max_model_len(3 * kTokens); };
  services_.spoil_generated = [](GeneratedSequence* sequence) {
    TokenSequence* tokens = sequence->mutable_tokens();
    const int prompt = tokens->ids_size() - 3;
    tokens->mutable_ids()->Resize(prompt + kTokens, ByteTokenizer::kEnd);
    tokens->mutable_action_mask()->Resize(prompt + kTokens, true);
    sequence->mutable_log_probs()->Resize(kTokens, -1);
    sequence->mutable_sampled_log_probs()->Resize(kTokens, -1);
    sequence->mutable_policy_versions()->Resize(kTokens, 0);
  };
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(ArrayOf(services_.policy_batches().at(0).at(0), kAdvantages).size(), kTokens);
}

// `config`, with a program for its reward, evaluated on its own prompts.
RunConfig JudgedByAProgram(RunConfig config) {
  RewardSource* source = config.mutable_reward()->mutable_source(0);
  source->Clear();
  source->set_name("judge");
  source->set_command("./judge");
  config.mutable_eval()->add_data(config.data().prompt_data(0));
  EXPECT_TRUE(ResolveRunConfig(&config, "").ok());
  return config;
}

TEST_F(PpoTest, EvaluatesByTheScoresOfAProgram) {
  services_.spoil_score = [](ScoreReply* reply) {
    (*reply->mutable_scores())["judge"] = reply->index() % 2 == 0 ? 1 : 0.5f;
  };
  ASSERT_TRUE(Run(JudgedByAProgram(services_.MakeConfig(scratch_.path(), 1))).ok());
  EXPECT_EQ(Lines("run/metrics.jsonl").front()["eval/prompts/pass@1"], 0.5);
}

TEST_F(PpoTest, HoldsAnswersOfUnfinishedReasoningForWrongWhereTheirSourceGivesScores) {
  RunConfig config = JudgedByAProgram(services_.MakeConfig(scratch_.path(), 1));
  config.mutable_reward()->mutable_source(0)->set_reasoning_delimiter("</think>");
  services_.spoil_score = [](ScoreReply* reply) {
    const bool finished = reply->index() % 2 == 0;
    (*reply->mutable_extra_logs())["judge/unfinished_reasoning"] = finished ? 0 : 1;
    if (finished) (*reply->mutable_scores())["judge"] = 1;
  };
  ASSERT_TRUE(Run(config).ok());
  EXPECT_EQ(Lines("run/metrics.jsonl").front()["eval/prompts/pass@1"], 0.5);
}

TEST_F(PpoTest, SaysWhereNoRewardTellsWhatIsRight) {
  ASSERT_TRUE(Run(JudgedByAProgram(services_.MakeConfig(scratch_.path(), 1))).ok());
  EXPECT_FALSE(Lines("run/metrics.jsonl").front().contains("eval/prompts/pass@1"));
  EXPECT_THAT(
      Shown(),
      Contains(HasSubstr("no pass@k (no reward compares with labels, and none gives a score, or not of all answers)")));
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

TEST_F(PpoTest, AsksNoReferenceWithoutAKlPenalty) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_algorithm()->mutable_kl()->set_init_kl_coef(0);
  ASSERT_TRUE(Run(config).ok());
  EXPECT_THAT(services_.calls(), Not(Contains("scorer.ReferenceLogProbs")));
  EXPECT_FALSE(Lines("run/metrics.jsonl")[0].contains("kl/mean"));
}

TEST(PpoSteps, FollowFromTheDataWhereTheyAreNotGiven) {
  RunConfig config;
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  config.mutable_rollout()->set_rollout_batch_size(4);
  config.mutable_rollout()->set_over_sampling_batch_size(4);
  config.mutable_train()->set_num_episodes(3);
  EXPECT_EQ(PpoSteps(config, 10), 8);
  EXPECT_EQ(PpoSteps(config, 1), 1);
  config.mutable_rollout()->set_over_sampling_batch_size(6);
  EXPECT_EQ(PpoSteps(config, 10), 5);  // 30 prompts, 6 a step
  config.mutable_train()->set_max_steps(9);
  EXPECT_EQ(PpoSteps(config, 10), 9);
}

}  // namespace
}  // namespace quartet
