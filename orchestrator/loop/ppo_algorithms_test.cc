// What the loop does otherwise where `algorithm` says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "core/config/run_config.h"
#include "core/rl/testing/token_arrays.h"
#include "orchestrator/loop/ppo.h"
#include "orchestrator/loop/testing/ppo_test_base.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// 4 prompts times 2 samples a step, of which the first is right and the second is not.
class PpoAlgorithmsTest : public PpoTest {
 protected:
  RunConfig Config(int steps, const std::vector<std::string>& overrides) {
    RunConfig config = services_.MakeConfig(scratch_.path(), steps);
    // Of the resolved configuration only what tests set is kept, so that the rest follows from it.
    config.clear_algorithm();
    config.clear_critic();
    config.clear_reference();
    config.mutable_rollout()->clear_over_sampling_batch_size();
    config.mutable_train()->clear_critic_train_batch_size();
    absl::Status status = ApplyOverrides(overrides, &config);
    EXPECT_TRUE(status.ok()) << status;
    RunConfig written;  // what the fake services listen at is not, where nothing calls them
    for (const std::string& override : overrides) ApplyOverrides({override}, &written).IgnoreError();
    status = ResolveRunConfig(&config, "", Program::kPpo, written);
    EXPECT_TRUE(status.ok()) << status;
    return config;
  }

  std::ptrdiff_t Count(const std::string& call) {
    const std::vector<std::string> calls = services_.calls();
    return std::count(calls.begin(), calls.end(), call);
  }

  // Advantages of the tokens of all sequences of the first policy update, sorted.
  std::vector<float> Advantages() {
    std::vector<float> advantages;
    const auto batches = services_.policy_batches();
    for (const TrainingSequence& sequence : batches.at(0)) {
      advantages.insert(advantages.end(), ArrayOf(sequence, kAdvantages).begin(), ArrayOf(sequence, kAdvantages).end());
    }
    std::sort(advantages.begin(), advantages.end());
    return advantages;
  }
};

// Programs that read a step's answers and write their advantages.
class AdvantagesByAProgram : public PpoAlgorithmsTest {
 protected:
  RunConfig By(const std::string& command, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"algorithm.advantage_estimator=command", "algorithm.kl.init_kl_coef=0",
                             "algorithm.advantage_command.command=" + command});
    return Config(1, more);
  }
  std::string Program(const std::string& answers_to_advantages) {
    scratch_.Write("adv.py",
                   "import json, sys\nfor line in sys.stdin:\n    q = json.loads(line)\n    answers = q['answers']\n"
                   "    said = {'advantages': " +
                       answers_to_advantages + "}\n    print(json.dumps(said), flush=True)\n");
    return "python3 " + scratch_.path() + "/adv.py";
  }
};

TEST_F(AdvantagesByAProgram, AreThoseOfTheRowOfTheSameName) {
  ASSERT_TRUE(Run(By("python3 examples/advantages/grpo.py")).ok());
  const std::vector<float> advantages = Advantages();
  ASSERT_EQ(advantages.size(), 24);
  EXPECT_NEAR(advantages.front(), -std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(advantages.back(), std::sqrt(0.5), 1e-6);
  EXPECT_THAT(services_.calls(), Each(Not(StartsWith("critic_trainer"))));
  EXPECT_NEAR(Lines("run/metrics.jsonl").at(0).at("reward/shaped_std"), std::sqrt(0.5), 1e-6);
}

TEST_F(AdvantagesByAProgram, AreMaxRlsByItsExample) {
  ASSERT_TRUE(Run(By("python3 examples/advantages/maxrl.py")).ok());
  EXPECT_EQ(Advantages().front(), -1);  // (0 - 0.5) / 0.5
  EXPECT_EQ(Advantages().back(), 1);
}

TEST_F(AdvantagesByAProgram, MayBeOneForEachToken) {
  const std::string by_token =
      Program("[[i + x + len(a['rollout_log_probs']) for i, x in enumerate(a['log_probs'])] for a in answers]");
  const absl::Status without = Run(By(by_token)).status();
  EXPECT_THAT(std::string(without.message()), AllOf(HasSubstr("step 1"), HasSubstr("KeyError")));
  const RunConfig with = By(by_token, {"algorithm.advantage_command.arrays=rollout_log_probs,log_probs"});
  const absl::Status status = Run(with).status();
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> advantages = Advantages();
  ASSERT_EQ(advantages.size(), 24);
  EXPECT_LT(advantages.front(), advantages.back());
}

// An agent's answer of several sequences is one to the program.
TEST_F(AdvantagesByAProgram, AreOfAllThatAnAnswersSequencesHaveDrawn) {
  const RunConfig config =
      By(Program("[[float(i) for i in a['ids']] for a in answers]"), {"algorithm.advantage_command.arrays=ids"});
  const auto program = AdvantageProgram::Start(config.algorithm());
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<Experience> batch(1);
  batch[0].prompt = std::make_shared<PromptRecord>();
  batch[0].rollout_log_probs = {-1, -1, -1};
  for (const std::vector<bool>& actions : std::vector<std::vector<bool>>{{false, true, true}, {false, false, true}}) {
    TokenSequence& sequence = batch[0].sequences.emplace_back();
    for (const bool action : actions) {
      sequence.add_ids(10 * static_cast<int>(batch[0].sequences.size()) + sequence.ids_size());
      sequence.add_action_mask(action);
    }
  }
  const absl::Status status = (*program)->Ask(0, &batch);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(batch[0].given_advantages, (std::vector<float>{11, 12, 22}));
}

TEST_F(AdvantagesByAProgram, OfNoNumberOrOfAnotherLengthEndTheRun) {
  const auto error = [this](const std::string& advantages) {
    static int runs = 0;
    const auto summary = Run(By(Program(advantages), {"run_dir=" + scratch_.path() + "/r" + std::to_string(++runs)}));
    return std::string(summary.status().message());
  };
  EXPECT_THAT(error("[1 for a in answers[1:]]"), HasSubstr("8 numbers or lists of numbers, one an answer"));
  EXPECT_THAT(error("[[1] for a in answers]"), AllOf(HasSubstr("answer 0"), HasSubstr("a list of 1 advantages")));
  EXPECT_THAT(error("['much' for a in answers]"), AllOf(HasSubstr("answer 0"), HasSubstr("\"much\"")));
  EXPECT_THAT(error("[1e300 for a in answers]"), HasSubstr("1e+300"));
  EXPECT_THAT(error("[float('nan') for a in answers]"), HasSubstr("has NaN or Infinity"));
}

TEST_F(AdvantagesByAProgram, AreGivenUpWhereTheRunIs) {
  const RunConfig config = By("while read -r line; do echo '{\"advantages\": []}'; read -r line; sleep 60; done");
  const auto program = AdvantageProgram::Start(config.algorithm());
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<Experience> batch(1);
  batch[0].prompt = std::make_shared<PromptRecord>();
  std::stop_source stop;
  std::thread later([&stop] {
    absl::SleepFor(absl::Milliseconds(100));
    stop.request_stop();
  });
  EXPECT_TRUE(absl::IsCancelled((*program)->Ask(0, &batch, stop.get_token())));
  later.join();
}

TEST_F(AdvantagesByAProgram, IsFoundNotToRunBeforeTheRunBegins) {
  for (const char* command : {"exit 3", "python3 /nowhere.py", "cat"}) {
    const absl::Status status = AdvantageProgram::Start(By(command).algorithm()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << command << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(command));
  }
}

TEST_F(AdvantagesByAProgram, WantACommandAndArraysThatThereAre) {
  const auto error = [](std::vector<std::string> overrides) {
    overrides.push_back("algorithm.advantage_estimator=command");
    return std::string(LoadRunConfig("", overrides, "").status().message());
  };
  EXPECT_THAT(error({}), HasSubstr("algorithm.advantage_command.command"));
  EXPECT_THAT(error({"algorithm.advantage_command.command=x", "algorithm.advantage_command.arrays=kl"}),
              AllOf(HasSubstr("algorithm.advantage_command.arrays"), HasSubstr("log_probs")));
  EXPECT_THAT(error({"algorithm.advantage_command.command=x", "algorithm.gamma=0.9"}), HasSubstr("gamma"));
  EXPECT_THAT(std::string(LoadRunConfig("", {"algorithm.advantage_command.command=x"}, "").status().message()),
              HasSubstr("algorithm.advantage_command"));
}

TEST_F(PpoAlgorithmsTest, NeitherAskNorSaveACriticWhereTheEstimatorHasNone) {
  services_.Kill("critic_trainer");
  RunConfig config = Config(2, {"algorithm.advantage_estimator=grpo", "algorithm.kl.init_kl_coef=0",
                                "train.save_steps=1", "train.save_optimizer=true"});
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_THAT(services_.calls(), Each(Not(StartsWith("critic_trainer"))));
  const nlohmann::json line = Lines("run/metrics.jsonl").at(1);
  EXPECT_FALSE(line.contains("critic/explained_variance"));
  EXPECT_FALSE(line.contains("memory/critic_trainer/parameters"));
  // Rewards 1 and 0: mean 0.5, unbiased deviation sqrt(0.5).
  const std::vector<float> advantages = Advantages();
  ASSERT_EQ(advantages.size(), 24);
  EXPECT_NEAR(advantages.front(), -std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(advantages.back(), std::sqrt(0.5), 1e-6);

  // It goes on from its checkpoint, too.
  config.mutable_train()->set_max_steps(3);
  config.mutable_train()->set_load_checkpoint(true);
  const absl::StatusOr<PpoSummary> continued = Run(config);
  ASSERT_TRUE(continued.ok()) << continued.status();
  EXPECT_EQ(continued->steps, 3);
}

TEST_F(PpoAlgorithmsTest, PutTheKlIntoTheLossInsteadOfTheRewards) {
  ASSERT_TRUE(Run(Config(1, {"algorithm.advantage_estimator=dr_grpo", "algorithm.kl.use_kl_loss=true",
                             "algorithm.kl.init_kl_coef=0.25", "algorithm.entropy_coef=0.5"}))
                  .ok());
  const std::vector<float> advantages = Advantages();
  EXPECT_EQ(advantages.front(), -0.5f) << "no token has a penalty";
  const PolicyLossConfig loss = services_.policy_updates().at(0).loss();
  EXPECT_EQ(loss.kl_coef(), 0.25f);
  EXPECT_EQ(loss.kl_estimator(), "k3");
  EXPECT_EQ(loss.entropy_coef(), 0.5f);
  double weights = 0;
  const auto batches = services_.policy_batches();
  for (const TrainingSequence& sequence : batches.at(0)) {
    EXPECT_EQ(ArrayOf(sequence, kReferenceLogProbs)[0], -1.25f);
    for (const float weight : ArrayOf(sequence, kLossWeights)) weights += weight;
  }
  // Sums of 8 answers of 3 tokens over 8 times generate_max_len, which is 5.
  EXPECT_NEAR(weights, 3.0 / 5, 1e-6);
}

TEST_F(PpoAlgorithmsTest, RedrawGroupsWithoutSignal) {
  // Of the groups of the first draw three are all right.
  services_.spoil_score = [scored = 0](ScoreReply* reply) mutable {
    if (++scored > 8 || reply->index() >= 6) return;
    reply->set_reward(1);
    reply->set_score(1);
  };
  const absl::StatusOr<PpoSummary> summary =
      Run(Config(1, {"algorithm.advantage_estimator=grpo", "algorithm.kl.init_kl_coef=0",
                     "algorithm.dynamic_sampling.filter=not_equal"}));
  ASSERT_TRUE(summary.ok()) << summary.status();
  const std::vector<GenerateHeader> generations = services_.generations();
  ASSERT_EQ(generations.size(), 2);
  EXPECT_NE(generations[0].sampling().seed(), generations[1].sampling().seed());
  EXPECT_EQ(services_.policy_batches().at(0).size(), 8);
  const nlohmann::json line = Lines("run/metrics.jsonl").at(0);
  EXPECT_EQ(line["dynamic_sampling/draws"], 2);
  EXPECT_EQ(line["dynamic_sampling/groups"], 8);
  EXPECT_EQ(line["dynamic_sampling/groups_without_signal"], 3);
  EXPECT_EQ(line["dynamic_sampling/groups_surplus"], 1);
  EXPECT_EQ(line["reward/mean"], 0.5);
}

TEST_F(PpoAlgorithmsTest, DrawPassesOverThePromptsWhereGroupsAreRedrawn) {
  // A pass is two steps; the first draws twice, and so all of it.
  services_.spoil_score = [scored = 0](ScoreReply* reply) mutable {
    if (++scored > 8) return;
    reply->set_reward(1);
    reply->set_score(1);
  };
  const auto config = [&](int episodes) {
    RunConfig made = Config(0, {"algorithm.advantage_estimator=grpo", "algorithm.kl.init_kl_coef=0",
                                "algorithm.dynamic_sampling.filter=not_equal", "data.max_samples=8"});
    made.mutable_train()->set_num_episodes(episodes);
    return made;
  };
  const absl::StatusOr<PpoSummary> summary = Run(config(1));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(services_.generations().size(), 2);
  EXPECT_EQ(summary->steps, 1);
  EXPECT_THAT(summary->checkpoint, HasSubstr("step_1")) << "the last step saves";
}

TEST_F(PpoAlgorithmsTest, EndWhereNoDrawHasASignal) {
  services_.spoil_score = [](ScoreReply* reply) {
    reply->set_reward(0);
    reply->set_score(0);
  };
  const absl::Status status = Run(Config(1, {"algorithm.advantage_estimator=grpo", "algorithm.kl.init_kl_coef=0",
                                             "algorithm.dynamic_sampling.filter=mean_inside",
                                             "algorithm.dynamic_sampling.max_num_gen_batches=3"}))
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("of 12 groups of answers only 0 have a signal"), HasSubstr("max_num_gen_batches (3)")));
}

TEST_F(PpoAlgorithmsTest, TakeTheFirstGroupsToFinishOfMoreThanAreNeeded) {
  ASSERT_TRUE(Run(Config(1, {"rollout.over_sampling_batch_size=6"})).ok());
  const auto batches = services_.policy_batches();
  ASSERT_EQ(batches.size(), 1);
  EXPECT_EQ(batches[0].size(), 8);
  EXPECT_EQ(Lines("run/metrics.jsonl").at(0)["reward/mean"], 0.5);
}

TEST_F(PpoAlgorithmsTest, LeaveOutAnswersThatCouldNotBeScored) {
  services_.spoil_score = [](ScoreReply* reply) {
    if (reply->index() != 3) return;
    const uint64_t index = reply->index();
    *reply = ScoreReply();
    reply->set_index(index);
    reply->set_error("remote: no answer after 5 tries");
  };
  const absl::StatusOr<PpoSummary> summary = Run(Config(1, {"reward.on_error=drop"}));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(services_.policy_batches().at(0).size(), 7);
  const nlohmann::json line = Lines("run/metrics.jsonl").at(0);
  EXPECT_EQ(line["reward/failed"], 1);
  EXPECT_NEAR(line["reward/mean"].get<double>(), 4.0 / 7, 1e-6) << "it is not worth 0";
}

// A reply that says why there is no reward.
void Fail(ScoreReply* reply) {
  const uint64_t index = reply->index();
  *reply = ScoreReply();
  reply->set_index(index);
  reply->set_error("remote: no answer after 5 tries");
}

TEST_F(PpoAlgorithmsTest, EndWithTheReasonWhereNoAnswerOfADrawCouldBeScored) {
  // The judge dies after the first draw, whose groups are all right.
  services_.spoil_score = [scored = 0](ScoreReply* reply) mutable {
    if (++scored > 8) return Fail(reply);
    reply->set_reward(1);
    reply->set_score(1);
  };
  const absl::Status status = Run(Config(1, {"algorithm.advantage_estimator=grpo", "algorithm.kl.init_kl_coef=0",
                                             "reward.on_error=drop", "algorithm.dynamic_sampling.filter=not_equal"}))
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("step 1: no answer could be scored: remote: no answer after 5 tries"));
  EXPECT_EQ(services_.generations().size(), 2);
}

TEST_F(PpoAlgorithmsTest, TellOfEachDrawHowManyAnswersCouldNotBeScoredAndWhy) {
  services_.spoil_score = [](ScoreReply* reply) {
    if (reply->index() < 5) return Fail(reply);
    reply->set_reward(0);
    reply->set_score(0);
  };
  const absl::Status status = Run(Config(1, {"algorithm.advantage_estimator=grpo", "algorithm.kl.init_kl_coef=0",
                                             "reward.on_error=drop", "algorithm.dynamic_sampling.filter=not_equal",
                                             "algorithm.dynamic_sampling.max_num_gen_batches=2"}))
                                  .status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("of 8 groups of answers only 0 have a signal"),
                    HasSubstr("10 answers could not be scored (remote: no answer after 5 tries)"),
                    HasSubstr("may lack a signal for that alone. Else the prompts are too easy or too hard")));
  const std::string why = "5 of 8 answers could not be scored: remote: no answer after 5 tries";
  EXPECT_THAT(Shown(), AllOf(Contains("warning: step 1: " + why), Contains("warning: step 1, draw 2: " + why)));
  EXPECT_THAT(scratch_.Read("run/events.jsonl"), HasSubstr("step 1, draw 2: 5 of 8"));
}

TEST_F(PpoAlgorithmsTest, LeavePromptsWhoseAnswersCouldNotBeScoredOutOfEvaluations) {
  services_.spoil_score = [](ScoreReply* reply) {
    if (reply->index() != 1) return;
    *reply = ScoreReply();
    reply->set_index(1);
    reply->set_error("remote: no answer after 5 tries");
  };
  RunConfig config = Config(1, {"reward.on_error=drop"});
  config.mutable_eval()->add_data(config.data().prompt_data(0));
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();
  const nlohmann::json line = Lines("run/evaluations.jsonl").at(0);
  EXPECT_EQ(line["failed"], 1);
  EXPECT_EQ(line["prompts"], Prompts::Open(config, tokenizer_).value()->size() - 1);
  EXPECT_THAT(Shown(), Contains(HasSubstr("others left out for 1 answers that could not be scored")));
}

TEST_F(PpoAlgorithmsTest, EvaluateByTheOtherSourcesWhereOneOfWeightZeroHasFailed) {
  RunConfig config = Config(1, {});
  RewardSource* source = config.mutable_reward()->add_source();
  source->set_rule("boxed");  // of which no reply has a part
  source->set_weight(0);
  config.mutable_eval()->add_data(config.data().prompt_data(0));
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  const absl::StatusOr<PpoSummary> summary = Run(config);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_GT(Lines("run/evaluations.jsonl").at(0)["pass@1"], 0);
}

TEST_F(PpoAlgorithmsTest, PunishAndLeaveOutAnswersThatAreTooLong) {
  services_.spoil_generated = [](GeneratedSequence* sequence) {
    if (sequence->sample() == 1) sequence->set_finish_reason(GeneratedSequence::LENGTH);
  };
  // Three tokens of at most five, the last four of which are the buffer: half of the factor.
  ASSERT_TRUE(Run(Config(1, {"algorithm.overlong_filtering=true", "algorithm.overlong_buffer_len=4"})).ok());
  EXPECT_EQ(services_.policy_batches().at(0).size(), 4) << "the other four are out of the loss";
  const nlohmann::json line = Lines("run/metrics.jsonl").at(0);
  EXPECT_EQ(line["response_length/excluded"], 0.5);
  EXPECT_EQ(line["reward/overlong_penalty"], -0.5);
  EXPECT_EQ(line["reward/mean"], 0.0);
}

TEST_F(PpoAlgorithmsTest, TrainTheCriticAloneWhileItWarmsUp) {
  const absl::StatusOr<PpoSummary> summary = Run(Config(3, {"algorithm.critic_warmup_steps=2"}));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(services_.policy_updates().size(), 1);
  EXPECT_EQ(services_.critic_updates().size(), 3);
  const std::vector<GenerateHeader> generations = services_.generations();
  ASSERT_EQ(generations.size(), 3);
  EXPECT_EQ(generations[2].policy_version(), 0) << "weights that have not changed are not sent";
  const auto lines = Lines("run/metrics.jsonl");
  EXPECT_FALSE(lines[1].contains("policy/loss"));
  EXPECT_TRUE(lines[2].contains("policy/loss"));
}

TEST_F(PpoAlgorithmsTest, RecomputeFewLogProbsWhereTheRolloutsAgree) {
  ASSERT_TRUE(Run(Config(1, {"algorithm.old_log_prob_source=auto"})).ok());
  EXPECT_EQ(Count("policy_trainer.LogProbs"), 1);
  EXPECT_EQ(Lines("run/metrics.jsonl").at(0)["policy/log_probs_recomputed"], 0.125) << "of 8 sequences one";
  // The batch's one optimizer step is under the weights that generated.
  EXPECT_TRUE(services_.policy_updates().at(0).loss().own_old_log_probs());
  EXPECT_TRUE(ArrayOf(services_.policy_batches().at(0).at(0), kOldLogProbs).empty());
}

TEST_F(PpoAlgorithmsTest, TakeTheRolloutsLogProbsForTheOldOnesOfSeveralSteps) {
  ASSERT_TRUE(Run(Config(1, {"algorithm.old_log_prob_source=auto", "train.updates_per_batch=2"})).ok());
  EXPECT_EQ(Count("policy_trainer.LogProbs"), 1);
  ASSERT_EQ(services_.policy_updates().size(), 2);
  EXPECT_FALSE(services_.policy_updates().at(1).loss().own_old_log_probs());
  const auto batches = services_.policy_batches();
  for (const TrainingSequence& sequence : batches.at(1)) {
    EXPECT_THAT(ArrayOf(sequence, kOldLogProbs), Each(-1.0f)) << "of the whole distribution, as the trainer's are";
  }
}

TEST_F(PpoAlgorithmsTest, RecomputeNoLogProbsThatNothingUses) {
  services_.trainer_log_prob = -1.001f;
  ASSERT_TRUE(Run(Config(1, {"algorithm.old_log_prob_source=rollout", "algorithm.advantage_estimator=grpo",
                             "algorithm.kl.init_kl_coef=0"}))
                  .ok());
  EXPECT_EQ(Count("policy_trainer.LogProbs"), 1);
}

TEST_F(PpoAlgorithmsTest, RecomputeAllLogProbsForAKlThoughTheRolloutsAreTheOldOnes) {
  services_.trainer_log_prob = -1.001f;
  ASSERT_TRUE(Run(Config(1, {"algorithm.old_log_prob_source=rollout", "algorithm.advantage_estimator=grpo"})).ok());
  EXPECT_EQ(Count("policy_trainer.LogProbs"), 2) << "of one sequence, then of the others";
  EXPECT_NEAR(Lines("run/metrics.jsonl").at(0)["kl/mean"].get<double>(), 0.249, 1e-5);
  const auto batches = services_.policy_batches();
  EXPECT_THAT(ArrayOf(batches.at(0).at(0), kOldLogProbs), Each(-0.75f)) << "of what was drawn from";
}

TEST_F(PpoAlgorithmsTest, RecomputeAllLogProbsWhereTheRolloutsDiffer) {
  services_.trainer_log_prob = -1.001f;
  ASSERT_TRUE(Run(Config(2, {"algorithm.old_log_prob_source=auto", "train.updates_per_batch=2"})).ok());
  EXPECT_EQ(Count("policy_trainer.LogProbs"), 4) << "of one sequence and of the others, twice";
  const auto batches = services_.policy_batches();
  for (const TrainingSequence& sequence : batches.at(3)) {
    EXPECT_THAT(ArrayOf(sequence, kOldLogProbs), Each(-1.001f));
  }
  EXPECT_EQ(Lines("run/metrics.jsonl").at(1)["policy/log_probs_recomputed"], 1.0);
  const std::vector<std::string> shown = Shown();
  EXPECT_EQ(
      std::count_if(shown.begin(), shown.end(),
                    [](const std::string& line) { return absl::StrContains(line, "differ by 0.001 on average"); }),
      1)
      << "it is said once";
}

TEST_F(PpoAlgorithmsTest, ReportWhatTheImportanceCorrectionDid) {
  services_.spoil_policy_update = [](PolicyUpdateReply* reply) {
    reply->set_correction_clipped(0.25);
    reply->set_effective_sample_size(0.5);
  };
  ASSERT_TRUE(Run(Config(1, {"algorithm.importance_correction.mode=token_truncate"})).ok());
  EXPECT_EQ(services_.policy_updates().at(0).loss().correction_mode(), "token_truncate");
  EXPECT_EQ(services_.policy_updates().at(0).loss().correction_high(), 2);
  EXPECT_EQ(ArrayOf(services_.policy_batches().at(0).at(0), kRolloutLogProbs)[0], -0.75f)
      << "of what was drawn from, not of the whole distribution";
  const nlohmann::json line = Lines("run/metrics.jsonl").at(0);
  EXPECT_EQ(line["correction/clipped"], 0.25);
  EXPECT_EQ(line["correction/masked"], 0);
  EXPECT_EQ(line["correction/effective_sample_size"], 0.5);
}

}  // namespace
}  // namespace quartet
