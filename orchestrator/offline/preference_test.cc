// DPO and the training of a reward model, on services with scripted answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/byte_tokenizer.h"
#include "core/clients/testing/fake_services.h"
#include "core/config/run_config.h"
#include "core/rl/testing/token_arrays.h"
#include "orchestrator/data/preference_pairs.h"
#include "orchestrator/offline/dpo.h"
#include "orchestrator/offline/pair_batch.h"
#include "orchestrator/offline/reward_model.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PreferenceTest : public ::testing::Test {
 protected:
  PreferenceTest() : config_(services_.MakeConfig(scratch_.path(), 1)) {
    services_.SetCheckpointRoot(scratch_.path() + "/run/checkpoints");
    PreferenceConfig* p = config_.mutable_preference();
    p->add_data(scratch_.Write("pairs.jsonl",
                               "{\"prompt\": \"ab\", \"chosen\": \"x\", \"rejected\": \"no\", \"gap\": 0.5}\n"
                               "{\"prompt\": \"abc\", \"chosen\": \"xyz\", \"rejected\": \"n\", \"gap\": 0.5}\n"
                               "{\"prompt\": \"a\", \"chosen\": \"xy\", \"rejected\": \"nope\", \"gap\": 0.5}\n"));
    // To the fake reward model an answer's last letter is its reward: it prefers one of these two, by 'z' - 'a'.
    p->add_eval_data(scratch_.Write("held_out.jsonl",
                                    "{\"prompt\": \"p\", \"chosen\": \"qz\", \"rejected\": \"qa\", \"gap\": 0}\n"
                                    "{\"prompt\": \"p\", \"chosen\": \"qa\", \"rejected\": \"ra\", \"gap\": 0}\n"));
    config_.mutable_train()->set_train_batch_size(2);
    config_.mutable_train()->set_max_steps(0);
  }

  // Calls `run(pairs, held_out, folder, view)`.
  template <typename Run>
  absl::StatusOr<OfflineSummary> WithPairs(Program program, const std::string& model, const Run& run) {
    if (const absl::Status resolved = ResolveRunConfig(&config_, "", program); !resolved.ok()) return resolved;
    services_.SetConfiguration(config_);
    const auto pairs = OpenPreferencePairs(config_, false, model, tokenizer_, {ByteTokenizer::kEnd});
    if (!pairs.ok()) return pairs.status();
    const auto held_out = OpenPreferencePairs(config_, true, model, tokenizer_, {ByteTokenizer::kEnd});
    if (!held_out.ok()) return held_out.status();
    const auto folder = RunFolder::Create(config_);
    if (!folder.ok()) return folder.status();
    char* text = nullptr;
    size_t size = 0;
    std::FILE* out = open_memstream(&text, &size);
    auto view = std::make_unique<TerminalView>(out, false);
    absl::StatusOr<OfflineSummary> summary = run(**pairs, **held_out, **folder, *view);
    view.reset();
    std::fclose(out);
    shown_ = text;
    free(text);
    return summary;
  }
  absl::StatusOr<OfflineSummary> RunDpoHere() {
    Cancellation cancellation;
    const auto trainer = ConnectPolicyTrainer(config_, &cancellation);
    const auto scorer = ConnectScorer(config_, &cancellation);
    return WithPairs(Program::kDpo, "actor",
                     [&](PreferencePairs& pairs, PreferencePairs& held_out, RunFolder& folder, TerminalView& view) {
                       return RunDpo({.config = config_, .tokenizer = tokenizer_, .folder = folder, .view = view},
                                     pairs, &held_out, **trainer, scorer->get());
                     });
  }
  absl::StatusOr<OfflineSummary> RunRewardModelHere() {
    Cancellation cancellation;
    const auto trainer = ConnectCriticTrainer(config_, &cancellation);
    return WithPairs(Program::kRewardModel, "critic",
                     [&](PreferencePairs& pairs, PreferencePairs& held_out, RunFolder& folder, TerminalView& view) {
                       return RunRewardModel(
                           {.config = config_, .tokenizer = tokenizer_, .folder = folder, .view = view}, pairs,
                           &held_out, **trainer);
                     });
  }

  ScratchFolder scratch_;
  FakeServices services_;
  ByteTokenizer tokenizer_;
  RunConfig config_;
  std::string shown_;  // by the last run
};

TEST_F(PreferenceTest, DpoSendsPairsWithTheirReferenceAndSavesThePolicy) {
  config_.mutable_train()->set_num_episodes(2);
  config_.mutable_preference()->set_label_smoothing(0.1f);
  services_.spoil_policy_update = [](PolicyUpdateReply* reply) {
    reply->mutable_pairs()->set_accuracy(0.75);
    reply->mutable_pairs()->set_margin(2);
  };
  const auto summary = RunDpoHere();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->steps, 3);
  EXPECT_EQ(summary->checkpoint, "checkpoints/step_3/policy");
  EXPECT_THAT(shown_, HasSubstr("DPO step 3/3: loss 0.2500, accuracy 0.750"));
  ASSERT_EQ(services_.policy_batches().size(), 3);
  for (const auto& batch : services_.policy_batches()) {
    ASSERT_EQ(batch.size(), 4);
    for (size_t i = 0; i < batch.size(); ++i) {
      EXPECT_EQ(batch[i].has_pair(), i % 2 == 0);
      EXPECT_EQ(batch[i].pair().weight(), i % 2 == 0 ? 0.5f : 0);
      EXPECT_THAT(ArrayOf(batch[i], kLossWeights), Each(1.0f));
      EXPECT_THAT(ArrayOf(batch[i], kReferenceLogProbs), Each(services_.reference_log_prob));
      EXPECT_EQ(ArrayOf(batch[i], kReferenceLogProbs).size(), ArrayOf(batch[i], kLossWeights).size());
      EXPECT_EQ(static_cast<char>(
                    batch[i].tokens().ids(batch[i].tokens().ids_size() - ArrayOf(batch[i], kLossWeights).size())),
                i % 2 == 0 ? 'x' : 'n');
    }
  }
  const PolicyLossConfig loss = services_.policy_updates()[0].loss();
  EXPECT_EQ(loss.kind(), PolicyLossConfig::KIND_DPO);
  EXPECT_EQ(loss.beta(), 0.1f);
  EXPECT_EQ(loss.label_smoothing(), 0.1f);
  EXPECT_EQ(services_.policy_updates()[0].temperature(), 1);
  EXPECT_THAT(scratch_.Read("run/metrics.jsonl"),
              AllOf(HasSubstr("\"dpo/loss\":0.25"), HasSubstr("\"dpo/accuracy\":0.75"), HasSubstr("\"dpo/margin\":2"),
                    ::testing::Not(HasSubstr("\"eval/preference_accuracy\""))))
      << "of answers that are worth the same";
}

TEST_F(PreferenceTest, IpoTakesTheMeanOverAnAnswersTokens) {
  config_.mutable_preference()->set_loss("ipo");
  config_.mutable_preference()->clear_label_smoothing();
  ASSERT_TRUE(RunDpoHere().ok());
  EXPECT_EQ(services_.policy_updates()[0].loss().kind(), PolicyLossConfig::KIND_IPO);
  for (const auto& batch : services_.policy_batches()) {
    for (const TrainingSequence& sequence : batch) {
      float sum = 0;
      for (float weight : ArrayOf(sequence, kLossWeights)) sum += weight;
      EXPECT_NEAR(sum, 1, 1e-6);
    }
  }
}

// The policy's log-probabilities are 0.25 above the reference's on every token: answers of equal length are worth the
// same.
TEST_F(PreferenceTest, DpoTellsTheRewardsOfHeldOutPairs) {
  const auto summary = RunDpoHere();
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_TRUE(summary->before.has_value());
  EXPECT_EQ(summary->before->pairs(), 2);
  EXPECT_EQ(summary->before->accuracy(), 0);
  EXPECT_NEAR(summary->before->chosen_reward(), 0.1 * 3 * 0.25, 1e-6);
  EXPECT_EQ(summary->before->margin(), 0);
  EXPECT_THAT(shown_, HasSubstr("held-out pairs before the first step: accuracy - (all are ties), margin 0.0000"));
}

TEST_F(PreferenceTest, ARewardModelIsTaughtPairsWithTheirMarginsAndJudgedByItsRewards) {
  config_.mutable_preference()->set_margin_key("gap");
  config_.mutable_train()->set_eval_steps(1);
  const auto summary = RunRewardModelHere();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->steps, 2);
  EXPECT_EQ(summary->checkpoint, "checkpoints/step_2/critic");
  ASSERT_EQ(services_.critic_batches().size(), 2);
  EXPECT_EQ(services_.critic_batches()[0].size(), 4);
  // The last batch does not reach into a second epoch.
  const std::vector<TrainingSequence> last = services_.critic_batches()[1];
  ASSERT_EQ(last.size(), 2);
  EXPECT_EQ(last[0].pair().weight(), 1);
  EXPECT_EQ(last[0].pair().margin(), 0.5f);
  EXPECT_FALSE(last[1].has_pair());
  EXPECT_EQ(services_.critic_updates()[0].loss(), CriticUpdateHeader::LOSS_PAIRWISE);
  ASSERT_TRUE(summary->after.has_value());
  EXPECT_EQ(summary->after->accuracy(), 0.5);
  EXPECT_EQ(summary->after->margin(), ('z' - 'a') / 2.0);
  EXPECT_THAT(shown_, AllOf(HasSubstr("held-out pairs before the first step: accuracy 0.500, margin 12.5000"),
                            HasSubstr("held-out pairs after step 1: "), HasSubstr("held-out pairs after step 2: "),
                            HasSubstr("reward model step 1/2: loss 0.7500")));
  EXPECT_THAT(scratch_.Read("run/metrics.jsonl"),
              AllOf(HasSubstr("\"reward_model/loss\":0.75"), HasSubstr("\"eval/preference_accuracy\":0.5")));
}

TEST_F(PreferenceTest, JudgeHeldOutPairsInCallsThatDoNotGrowWithTheirNumber) {
  std::string rows;
  for (int i = 0; i < 300; ++i) {
    absl::StrAppend(&rows, "{\"prompt\": \"p\", \"chosen\": \"", i < 280 ? "b" : "a", "\", \"rejected\": \"aa\"}\n");
  }
  config_.mutable_preference()->set_eval_data(0, scratch_.Write("many.jsonl", rows));
  ASSERT_TRUE(ResolveRunConfig(&config_, "", Program::kRewardModel).ok());
  const auto held_out = OpenPreferencePairs(config_, true, "critic", tokenizer_, {ByteTokenizer::kEnd});
  ASSERT_TRUE(held_out.ok()) << held_out.status();
  std::vector<size_t> calls;
  const auto stats = JudgePairs(held_out->get(), [&](SequenceSpan sequences) {
    calls.push_back(sequences.size());
    std::vector<double> rewards;
    // Of the answer's letter, which the end follows.
    for (const TokenSequence* s : sequences) rewards.push_back(s->ids(s->ids_size() - 2) - 'a');
    return rewards;
  });
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_THAT(calls, ElementsAre(512, 88));
  EXPECT_EQ((*stats)->pairs(), 300);
  EXPECT_EQ((*stats)->accuracy(), 280.0 / 300);
  EXPECT_EQ((*stats)->margin(), 280.0 / 300);
}

TEST_F(PreferenceTest, RefuseATrainerThatHasAlreadyTrained) {
  services_.SetOptimizerSteps(7);
  EXPECT_THAT(std::string(RunRewardModelHere().status().message()),
              HasSubstr("critic_trainer has made 7 optimizer steps"));
  EXPECT_TRUE(services_.critic_updates().empty());
}

}  // namespace
}  // namespace quartet
