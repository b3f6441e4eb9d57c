#include "core/config/batches/call_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/config/run_config.h"
#include "proto/scorer.pb.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

std::string Refused(const std::vector<std::string>& overrides, int64_t evaluated = 0) {
  return std::string(CheckCallSizes(LoadRunConfig("", overrides, "").value(), evaluated).message());
}

TEST(CallSizes, FollowTheBatchUnlessTheyAreGiven) {
  const std::vector<std::string> large = {"rollout.rollout_batch_size=512", "rollout.n_samples_per_prompt=16",
                                          "rollout.generate_max_len=20480"};
  const RunConfig config = LoadRunConfig("", large, "").value();
  EXPECT_GT(config.services().policy_trainer().max_call_bytes(), int64_t{8192} * 20480 * 33);
  EXPECT_EQ(config.services().scorer().max_calls_bytes(), 4 * config.services().scorer().max_call_bytes());
  EXPECT_EQ(Refused(large), "");
}

TEST(CallSizes, HaveRoomForTheTextOfEachTokenWhereTokensHaveRewards) {
  constexpr int kTokens = 1025;
  const auto room = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"data.prompt_max_len=2", absl::StrCat("rollout.generate_max_len=", kTokens)};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return LargestCallBytes(LoadRunConfig("", overrides, "").value()) / 128;
  };
  ScoreItem item;
  for (int i = 0; i < kTokens + 2; ++i) {
    item.mutable_tokens()->add_ids(i);
    item.mutable_tokens()->add_action_mask(i >= 2);
    if (i < 2) continue;
    item.add_token_texts(" letters");
    item.mutable_response()->append(" letters");
    item.mutable_query()->append(" letters");
  }
  const auto bytes = static_cast<int64_t>(item.SpaceUsedLong());
  EXPECT_GT(bytes, room({}));
  EXPECT_LE(bytes, room({"reward.source.0.command=judge", "reward.source.0.token_rewards=true"}));
}

TEST(CallSizes, AreRefusedBeforeARunThatTheyWouldEnd) {
  EXPECT_EQ(Refused({}), "");
  EXPECT_THAT(Refused({"rollout.max_waiting=100", "rollout.max_num_seqs=8"}),
              HasSubstr("rollout.max_waiting: 100 is not allowed; a step generates 128 sequences "
                        "(rollout.over_sampling_batch_size * n_samples_per_prompt), of which 8 can run (engines * "
                        "rollout.max_num_seqs): it must be at least 120"));
  EXPECT_EQ(Refused({"rollout.max_waiting=120", "rollout.max_num_seqs=8"}), "");
  EXPECT_THAT(Refused({"rollout.max_waiting=200", "rollout.max_num_seqs=8"}, 300),
              HasSubstr("an evaluation generates 300 sequences"));
  EXPECT_THAT(Refused({"services.scorer.max_call_items=100"}), HasSubstr("services.scorer.max_call_items: 100"));
  EXPECT_THAT(Refused({"services.policy_trainer.max_call_bytes=1000"}),
              HasSubstr("services.policy_trainer.max_call_bytes: 1000 is not allowed; a step generates 128 sequences"));
}

TEST(CallSizes, OfARunThatLearnsFromRowsAreThoseOfItsBatch) {
  const auto refused = [](Program program, std::vector<std::string> overrides) {
    const std::string model = program == Program::kRewardModel ? "critic" : "actor";
    overrides.insert(overrides.begin(),
                     {model + ".pretrain=/m", program == Program::kSft ? "sft.data=/d" : "preference.data=/d"});
    const auto config = LoadRunConfig("", overrides, "", program);
    return std::string((config.ok() ? CheckFor(*config, program) : config.status()).message());
  };
  EXPECT_EQ(refused(Program::kSft, {"train.train_batch_size=100"}), "");
  EXPECT_EQ(refused(Program::kSft, {"services.policy_trainer.max_call_items=32"}), "");
  EXPECT_EQ(refused(Program::kSft, {"services.policy_trainer.max_call_items=31"}),
            "services.policy_trainer.max_call_items: 31 is not allowed; a step learns from 32 sequences "
            "(train.train_batch_size), which come in one call");
  EXPECT_THAT(
      refused(Program::kSft, {"services.policy_trainer.max_call_bytes=1000"}),
      HasSubstr("services.policy_trainer.max_call_bytes: 1000 is not allowed; a step learns from 32 sequences"));
  EXPECT_EQ(refused(Program::kDpo, {"services.policy_trainer.max_call_items=64"}), "");
  EXPECT_THAT(refused(Program::kDpo, {"services.scorer.max_call_items=63"}),
              HasSubstr("services.scorer.max_call_items: 63 is not allowed; a step learns from 64 sequences (2 * "));
  EXPECT_EQ(refused(Program::kDpo, {"services.scorer.max_call_items=512", "preference.eval_data=/e"}), "");
  EXPECT_THAT(refused(Program::kRewardModel, {"services.critic_trainer.max_call_items=511", "preference.eval_data=/e"}),
              HasSubstr("held-out pairs are judged 256 at a time, which are 512 sequences"));
  // What nobody has set is enough.
  EXPECT_EQ(refused(Program::kSft, {"train.train_batch_size=8192", "actor.max_len=32768"}), "");
}

TEST(CallSizes, OfAnEvaluationAreThoseOfItsPrompts) {
  const auto refused = [](const std::vector<std::string>& overrides) {
    return std::string(
        CheckEvaluationCalls(LoadRunConfig("", overrides, "", Program::kEvaluate).value(), 10).message());
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({"rollout.max_waiting=2", "rollout.max_num_seqs=8"}), "") << "its batch is not an evaluation's";
  EXPECT_THAT(refused({"rollout.max_waiting=1", "rollout.max_num_seqs=8"}),
              HasSubstr("an evaluation generates 10 sequences"));
  EXPECT_THAT(refused({"services.scorer.max_call_items=9"}), HasSubstr("services.scorer.max_call_items: 9"));
  EXPECT_THAT(refused({"services.scorer.max_call_bytes=100000"}),
              HasSubstr("services.scorer.max_call_bytes: 100000 is not allowed; an evaluation generates 10 sequences"));
  EXPECT_EQ(refused({"services.rollout.max_call_bytes=100000"}), "") << "which answers one at a time";
  EXPECT_EQ(refused({"rollout.generate_max_len=10000000"}), "") << "what nobody has set is enough";
}

}  // namespace
}  // namespace quartet
