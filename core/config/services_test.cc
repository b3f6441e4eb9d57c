#include "core/config/services.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const std::vector<std::string> kRun = {"run_dir=/run", "actor.pretrain=/actor", "critic.pretrain=/critic",
                                       "reward.source.0.rule=number"};

std::map<std::string, std::string> FieldsOf(const std::string& service, const std::string& change = "") {
  std::vector<std::string> overrides = kRun;
  if (!change.empty()) overrides.push_back(change);
  const absl::StatusOr<RunConfig> config = LoadRunConfig("", overrides, "/");
  EXPECT_TRUE(config.ok()) << config.status();
  return ServiceFields(*config, service);
}

// The services that go by what an override changes.
std::set<std::string> Affected(const std::string& change) {
  std::set<std::string> affected;
  for (const std::string& service : kServiceNames) {
    if (FieldsOf(service, change) != FieldsOf(service)) affected.insert(service);
  }
  return affected;
}

TEST(ServiceFields, AreThoseThatTheServiceUses) {
  EXPECT_THAT(Affected("run_dir=/other"), UnorderedElementsAre("policy_trainer", "critic_trainer"));
  EXPECT_THAT(Affected("actor.max_norm=2"), UnorderedElementsAre("policy_trainer"));
  EXPECT_THAT(Affected("actor.pretrain=/other"),
              UnorderedElementsAre("rollout", "policy_trainer", "critic_trainer", "scorer"));
  EXPECT_THAT(Affected("rollout.pretrain=/other"), UnorderedElementsAre("rollout"));
  EXPECT_THAT(Affected("rollout.stop_token_ids=7"), UnorderedElementsAre("rollout"));
  EXPECT_THAT(Affected("critic.dtype=fp32"), UnorderedElementsAre("critic_trainer"));
  EXPECT_THAT(Affected("seed=7"), UnorderedElementsAre("critic_trainer"));
  EXPECT_THAT(Affected("reward.source.0.rule=exact_match"), UnorderedElementsAre("scorer"));
  EXPECT_THAT(Affected("reference.pretrain=/other"), UnorderedElementsAre("scorer"));
  EXPECT_THAT(Affected("algorithm.kl.init_kl_coef=0"), UnorderedElementsAre("scorer"));
}

TEST(ServiceFields, AreNoneOfWhatIsTheOrchestratorsOrNobodysBusiness) {
  for (const char* change : {"train.max_steps=7", "train.save_steps=7", "train.call_timeout_seconds=7",
                             "data.prompt_data=/other", "data.apply_chat_template=true", "rollout.rollout_batch_size=7",
                             "rollout.temperature=0.7", "rollout.http.listen=127.0.0.1:0", "algorithm.gamma=0.7",
                             "algorithm.kl.init_kl_coef=0.7", "actor.learning_rate=1", "eval.data=/other",
                             "services.rollout.ranks=7", "services.scorer.listen=127.0.0.1:7"}) {
    EXPECT_THAT(Affected(change), IsEmpty()) << change;
  }
}

TEST(ServiceFields, AreNamedAsTheyAreSet) {
  const auto fields = FieldsOf("scorer", "reward.source.0.weight=0.5");
  EXPECT_EQ(fields.at("reward.source.0.rule"), "\"number\"");
  EXPECT_EQ(fields.at("reward.source.0.weight"), "0.5");
  EXPECT_EQ(fields.at("actor.max_len"), "2048");
  EXPECT_EQ(FieldsOf("rollout", "rollout.stop_token_ids=7").at("rollout.stop_token_ids.0"), "7");
}

}  // namespace
}  // namespace quartet
