// actor.lora and critic.lora: what is not said of them, what follows from them, and where they may not be.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/config/services.h"

namespace quartet {
namespace {

RunConfig LoraLoaded(const std::vector<std::string>& overrides, Program program = Program::kPpo) {
  const absl::StatusOr<RunConfig> config = LoadRunConfig("", overrides, "", program);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : RunConfig();
}

std::string LoraError(const std::vector<std::string>& overrides, Program program = Program::kPpo) {
  return std::string(LoadRunConfig("", overrides, "", program).status().message());
}

TEST(ActorLora, IsThereWhereAnyOfItIsSaid) {
  EXPECT_FALSE(LoraLoaded({}).actor().has_lora());
  const LoraConfig lora = LoraLoaded({"actor.lora.r=8"}).actor().lora();
  EXPECT_EQ(lora.r(), 8);
  EXPECT_EQ(lora.alpha(), 32);
  EXPECT_FALSE(lora.use_rslora());
  EXPECT_EQ(LoraLoaded({"actor.lora.alpha=8"}).actor().lora().r(), 16);
  EXPECT_EQ(LoraLoaded({"actor.lora.target_modules=q_proj,v_proj"}).actor().lora().target_modules_size(), 2);
  EXPECT_NE(LoraError({"actor.lora.r=0"}).find("actor.lora.r: 0 is not allowed"), std::string::npos);
  EXPECT_NE(LoraError({"actor.lora.alpha=0"}).find("actor.lora.alpha: 0 is not allowed"), std::string::npos);
}

TEST(ActorLora, NamesItsProductsInOneWay) {
  const auto targets = [](const std::string& value) {
    const auto named = LoraLoaded({"critic.lora.r=8", "critic.lora.target_modules=" + value}).critic().lora();
    return std::vector<std::string>(named.target_modules().begin(), named.target_modules().end());
  };
  using Names = std::vector<std::string>;
  for (const std::string all : {"", "all-linear", "down_proj,up_proj,gate_proj,o_proj,v_proj,k_proj,q_proj"}) {
    EXPECT_EQ(targets(all), Names{"all-linear"}) << all;
  }
  EXPECT_EQ(targets("v_proj,q_proj,v_proj"), (Names{"q_proj", "v_proj"}));
  EXPECT_EQ(targets("mlp.up_proj,q_proj"), (Names{"mlp.up_proj", "q_proj"}));
  EXPECT_EQ(targets("q_proj,lm_head"), (Names{"q_proj", "lm_head"})) << "which is refused where the model is known";
}

TEST(ActorLora, LearnsTenTimesAsFastWhereNothingIsSaid) {
  EXPECT_EQ(LoraLoaded({"actor.lora.r=8"}).actor().learning_rate(), 1e-5);
  EXPECT_EQ(LoraLoaded({"actor.lora.r=8"}).critic().learning_rate(), 9e-6);
  EXPECT_EQ(LoraLoaded({"actor.lora.r=8"}, Program::kSft).actor().learning_rate(), 1e-3);
  EXPECT_EQ(LoraLoaded({"actor.lora.r=8"}, Program::kDpo).actor().learning_rate(), 1e-5);
  EXPECT_EQ(LoraLoaded({"actor.lora.r=8", "actor.learning_rate=1e-6"}).actor().learning_rate(), 1e-6);
}

TEST(ActorLora, AllowsNoDifferenceWhereTrainerAndRolloutComputeAlike) {
  const auto limit = [](const std::vector<std::string>& overrides) {
    return LoraLoaded(overrides).train().max_log_prob_diff_mean();
  };
  EXPECT_EQ(limit({}), 0.5F);
  EXPECT_EQ(limit({"actor.lora.r=8"}), 1e-3F);
  EXPECT_EQ(limit({"actor.lora.r=8", "train.max_log_prob_diff_mean=0.1"}), 0.1F);
  EXPECT_EQ(limit({"actor.lora.r=8", "rollout.dtype=fp32"}), 0.5F);
  EXPECT_EQ(limit({"actor.lora.r=8", "rollout.tensor_parallel_size=2"}), 0.5F);
  EXPECT_EQ(limit({"actor.lora.r=8", "services.device=cuda", "services.scorer.device=cpu"}), 0.5F);
}

TEST(ActorLora, HasItsModelForTheReferenceUnlessAnotherIsNamed) {
  RunConfig config = LoraLoaded({"actor.pretrain=/m", "actor.lora.r=8"});
  EXPECT_TRUE(UsesReference(config));
  EXPECT_TRUE(ReferenceIsBase(config));
  EXPECT_FALSE(ReferenceOf(config).has_value());
  EXPECT_TRUE(ScoringModels(config).empty());
  EXPECT_EQ(ServicesOf(Program::kDpo, config), kSftServices);
  config = LoraLoaded({"actor.pretrain=/m", "actor.lora.r=8", "reference.pretrain=/r"});
  EXPECT_FALSE(ReferenceIsBase(config));
  EXPECT_EQ(ReferenceOf(config)->pretrain(), "/r");
  EXPECT_EQ(ReferenceOf(config)->dtype(), "bf16");
  EXPECT_EQ(ServicesOf(Program::kDpo, config), kDpoServices);
  EXPECT_FALSE(ReferenceIsBase(LoraLoaded({"actor.pretrain=/m"})));
  EXPECT_NE(LoraError({"actor.pretrain=/m", "actor.lora.r=8", "reference.zero_stage=0"})
                .find("reference.zero_stage has no effect: actor.lora is set and reference.pretrain is not"),
            std::string::npos);
}

TEST(ActorLora, LeavesDpoWithoutAScorerUnlessAReferenceIsNamed) {
  std::vector<std::string> sets = {"actor.lora.r=8", "services.scorer.ranks=2"};
  EXPECT_EQ(LoraError(sets, Program::kDpo).find("services.scorer.ranks has no effect: actor.lora is set"), 0u);
  sets.emplace_back("reference.pretrain=/m");
  EXPECT_EQ(LoraError(sets, Program::kDpo), "");
}

TEST(CriticLora, IsThereWhereAnyOfItIsSaidAndNotWithTheActors) {
  EXPECT_FALSE(LoraLoaded({"actor.lora.r=8"}).critic().has_lora());
  const RunConfig config = LoraLoaded({"critic.lora.r=8"});
  EXPECT_FALSE(config.actor().has_lora());
  EXPECT_EQ(config.critic().lora().r(), 8);
  EXPECT_EQ(config.critic().lora().alpha(), 32);
  EXPECT_EQ(config.train().max_log_prob_diff_mean(), 0.5F);
  EXPECT_NE(LoraError({"critic.lora.r=0"}).find("critic.lora.r: 0 is not allowed"), std::string::npos);
}

TEST(CriticLora, LearnsTenTimesAsFastWhereNothingIsSaid) {
  EXPECT_EQ(LoraLoaded({"critic.lora.r=8"}).critic().learning_rate(), 9e-5);
  EXPECT_EQ(LoraLoaded({"critic.lora.r=8"}).actor().learning_rate(), 1e-6);
  EXPECT_EQ(LoraLoaded({"critic.lora.r=8"}, Program::kRewardModel).critic().learning_rate(), 1e-4);
  EXPECT_EQ(LoraLoaded({"critic.lora.r=8", "critic.learning_rate=1e-6"}).critic().learning_rate(), 1e-6);
}

TEST(CriticLora, HasNoEffectWhereThereIsNoCritic) {
  EXPECT_EQ(LoraError({"critic.lora.r=8"}, Program::kSft), "critic.lora.r has no effect: it trains no critic");
  EXPECT_EQ(LoraError({"critic.lora.r=8", "algorithm.advantage_estimator=grpo"}).find("critic.lora.r has no effect: "),
            0u);
  RunConfig config = LoraLoaded({"critic.lora.r=8"});
  ClearUnread(Program::kEvaluate, &config);
  EXPECT_FALSE(config.critic().has_lora());
}

TEST(CriticLora, IsTheCriticTrainersAlone) {
  const RunConfig config = LoraLoaded({"critic.lora.r=8"});
  EXPECT_EQ(ServiceFields(config, "critic_trainer")["critic.lora.r"], "8");
  for (const char* service : {"policy_trainer", "rollout", "scorer"}) {
    EXPECT_FALSE(ServiceFields(config, service).contains("critic.lora.r")) << service;
  }
}

TEST(ActorLora, IsLeftAsideByAnEvaluation) {
  RunConfig config = LoraLoaded({"actor.lora.r=8"});
  ClearUnread(Program::kEvaluate, &config);
  EXPECT_FALSE(config.actor().has_lora());
}

TEST(ActorLora, IsWhatTrainerAndRolloutMustHaveAlike) {
  const RunConfig config = LoraLoaded({"actor.lora.r=8"});
  for (const char* service : {"policy_trainer", "rollout"}) {
    EXPECT_EQ(ServiceFields(config, service)["actor.lora.r"], "8") << service;
  }
  EXPECT_FALSE(ServiceFields(config, "scorer").contains("actor.lora.r"));
}

}  // namespace
}  // namespace quartet
