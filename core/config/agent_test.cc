// What a run with an agent may say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/config/batches/call_sizes.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<RunConfig> WithAgent(std::vector<std::string> overrides, Program program = Program::kPpo) {
  overrides.insert(overrides.begin(), {"agent.command=python3 agent.py", "data.apply_chat_template=true"});
  return LoadRunConfig("", overrides, "/base", program);
}

std::string RefusalBesideAgent(const std::vector<std::string>& overrides) {
  return std::string(WithAgent(overrides).status().message());
}

TEST(AnAgent, HasDefaults) {
  const RunConfig config = WithAgent({}).value();
  const AgentConfig& agent = config.agent();
  EXPECT_EQ(agent.command_folder(), "/base");
  EXPECT_FALSE(agent.kept());
  EXPECT_EQ(agent.processes(), 64);
  EXPECT_EQ(agent.max_turns(), 16);
  EXPECT_EQ(agent.timeout_seconds(), 600);
  EXPECT_EQ(agent.max_tries(), 3);
  EXPECT_EQ(agent.on_error(), "stop");
  EXPECT_TRUE(HasAgent(config));
  EXPECT_FALSE(HasAgent(LoadRunConfig("", {}, "").value()));
  EXPECT_FALSE(LoadRunConfig("", {}, "").value().has_agent());
}

TEST(AnAgent, HasNoMoreProcessesThanAStepHasEpisodes) {
  const auto processes = [](const std::vector<std::string>& overrides) {
    return WithAgent(overrides).value().agent().processes();
  };
  EXPECT_EQ(processes({"rollout.rollout_batch_size=4", "rollout.n_samples_per_prompt=3"}), 12);
  EXPECT_EQ(processes({"rollout.rollout_batch_size=4", "rollout.over_sampling_batch_size=6"}), 6);
  EXPECT_EQ(processes({"rollout.max_calls=8"}), 8);
  EXPECT_EQ(processes({"agent.processes=200"}), 200);
  EXPECT_THAT(RefusalBesideAgent({"agent.processes=2000"}),
              AllOf(StartsWith("agent.processes: 2000 is not allowed"), HasSubstr("rollout.max_calls = 1024")));
}

TEST(AnAgent, IsACommand) {
  const auto refusal = [](const std::vector<std::string>& overrides) {
    return std::string(LoadRunConfig("", overrides, "").status().message());
  };
  EXPECT_THAT(refusal({"agent.kept=true"}), StartsWith("agent.command is not set; "));
  EXPECT_THAT(RefusalBesideAgent({"agent.on_error=skip"}),
              AllOf(HasSubstr("agent.on_error"), HasSubstr("skip"), HasSubstr("\"drop\"")));
  EXPECT_THAT(RefusalBesideAgent({"agent.max_turns=0"}), HasSubstr("agent.max_turns: 0 is not allowed"));
  EXPECT_THAT(RefusalBesideAgent({"agent.timeout_seconds=0"}), HasSubstr("agent.timeout_seconds: 0 is not allowed"));
  EXPECT_THAT(RefusalBesideAgent({"agent.max_tries=0"}), HasSubstr("agent.max_tries: 0 is not allowed"));
}

TEST(AnAgent, IsReadWhereAnswersAreGenerated) {
  EXPECT_TRUE(WithAgent({}, Program::kEvaluate).ok());
  for (const Program program : {Program::kSft, Program::kDpo, Program::kRewardModel}) {
    EXPECT_EQ(std::string(WithAgent({}, program).status().message()),
              "agent.command has no effect: it is of runs that generate answers");
  }
}

TEST(AnAgent, IsRefusedWhatItCannotHave) {
  EXPECT_THAT(RefusalBesideAgent({"data.apply_chat_template=false"}), HasSubstr("data.apply_chat_template: false"));
  EXPECT_THAT(RefusalBesideAgent({"data.tools_key=tools"}), StartsWith("data.tools_key has no effect: "));
  EXPECT_THAT(RefusalBesideAgent({"algorithm.overlong_buffer_len=10"}),
              HasSubstr("algorithm.overlong_buffer_len: 10 is not allowed; it must be 0 with agent"));
  EXPECT_EQ(RefusalBesideAgent({"algorithm.overlong_buffer_len=10", "algorithm.overlong_penalty_factor=0"}), "");
  EXPECT_THAT(RefusalBesideAgent({"reward.source.0.rule=length"}),
              HasSubstr("reward.source[0].rule: \"length\" is not allowed"));
  EXPECT_THAT(RefusalBesideAgent({"reward.source.0.rule=number", "reward.source.0.name=agent"}),
              HasSubstr("reward.source[0].name: \"agent\" is not allowed"));
  EXPECT_THAT(RefusalBesideAgent({"reward.source.0.command=judge", "reward.source.0.token_rewards=true"}),
              HasSubstr("reward.source[0].token_rewards: true is not allowed"));
}

TEST(AnAgent, IsASourceOfRewards) {
  EXPECT_TRUE(HasRewards(WithAgent({}).value()));
  const std::vector<std::string> run = {"actor.pretrain=/m",
                                        "data.prompt_data=/d",
                                        "algorithm.kl.init_kl_coef=0",
                                        "algorithm.advantage_estimator=grpo",
                                        "rollout.n_samples_per_prompt=2",
                                        "algorithm.dynamic_sampling.filter=not_equal",
                                        "eval.data=/e"};
  const auto checked = [&run](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = run;
    overrides.insert(overrides.end(), more.begin(), more.end());
    const RunConfig config = WithAgent(overrides).value();
    for (const Program program : {Program::kPpo, Program::kScorer}) {
      if (const absl::Status status = CheckFor(config, program); !status.ok()) return std::string(status.message());
    }
    return std::string();
  };
  EXPECT_EQ(checked({}), "");
  EXPECT_EQ(checked({"reward.source.0.rule=exact_match"}), "");
  EXPECT_EQ(checked({"reward.source.0.rule=exact_match", "reward.source.0.gate=true"}), "");
  EXPECT_EQ(checked({"reward.source.0.rule=exact_match", "reward.source.0.weight=0"}), "");
}

TEST(AnAgent, HasSequencesAsLongAsActorMaxLen) {
  const RunConfig one_turn = WithAgent({"data.prompt_max_len=100", "rollout.generate_max_len=20"}).value();
  EXPECT_EQ(LongestSequence(one_turn), 120);
  EXPECT_EQ(one_turn.actor().max_len(), 120);
  const std::vector<std::string> long_run = {"actor.pretrain=/m",           "critic.pretrain=/m",
                                             "data.prompt_data=/d",         "data.prompt_max_len=100",
                                             "rollout.generate_max_len=20", "actor.max_len=500"};
  const RunConfig config = WithAgent(long_run).value();
  EXPECT_EQ(LongestSequence(config), 500);
  EXPECT_EQ(config.rollout().max_model_len(), 500);
  EXPECT_EQ(config.critic().max_len(), 500);
  EXPECT_EQ(CheckFor(config, Program::kPpo), absl::OkStatus());
  const auto refusal = [&long_run](const std::string& more) {
    std::vector<std::string> overrides = long_run;
    overrides.push_back(more);
    return std::string(CheckFor(WithAgent(overrides).value(), Program::kPpo).message());
  };
  EXPECT_THAT(refusal("rollout.max_model_len=400"),
              AllOf(HasSubstr("rollout.max_model_len: 400"), HasSubstr("at least actor.max_len = 500")));
  EXPECT_THAT(refusal("actor.max_len=119"), AllOf(HasSubstr("actor.max_len: 119"),
                                                  HasSubstr("data.prompt_max_len + rollout.generate_max_len = 120")));
}

TEST(AnAgent, MayBringASequenceForEachTurn) {
  const auto refusal = [](const std::vector<std::string>& overrides) {
    return std::string(CheckCallSizes(WithAgent(overrides).value(), 0).message());
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_THAT(refusal({"services.policy_trainer.max_call_items=2000"}),
              HasSubstr("services.policy_trainer.max_call_items: 2000 is not allowed; a step generates up to 2048 "
                        "sequences (rollout.over_sampling_batch_size * n_samples_per_prompt * agent.max_turns)"));
  EXPECT_EQ(refusal({"services.policy_trainer.max_call_items=2000", "agent.max_turns=8"}), "");
  // Each turn is a call of its own.
  EXPECT_EQ(refusal({"services.rollout.max_call_items=64"}), "");
  EXPECT_THAT(refusal({"rollout.max_waiting=10", "rollout.max_num_seqs=8"}),
              HasSubstr("64 episodes (agent.processes) ask for a sequence at the same time each"));
}

}  // namespace
}  // namespace quartet
