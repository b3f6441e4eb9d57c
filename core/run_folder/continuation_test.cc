#include "core/run_folder/continuation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/run_config.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

RunConfig With(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"run_dir=/runs/a", "actor.pretrain=/models/a", "data.prompt_data=/a.jsonl"});
  return LoadRunConfig("", overrides, "").value();
}

TEST(Continuation, ListsWhatIsOtherwiseThanBefore) {
  const RunConfig before = With({});
  EXPECT_THAT(ChangesOfRun(before, before, {}).value(), IsEmpty());
  EXPECT_THAT(ChangesOfRun(before,
                           With({"train.max_steps=60", "actor.learning_rate=2e-6", "run_dir=/runs/moved",
                                 "train.load_checkpoint=true", "services.rollout.ranks=2", "data.checked_rows=7",
                                 "data.skip_malformed=true"}),
                           {})
                  .value(),
              ElementsAre("actor.learning_rate: 1e-06 -> 2e-06", "data.checked_rows: 100000 -> 7",
                          "data.skip_malformed: false -> true", "train.max_steps: 0 -> 60",
                          "train.num_episodes: 1 -> nothing"));
}

TEST(Continuation, RefusesAnotherModelOrOtherDataByName) {
  const auto changed = [](const std::vector<std::string>& overrides) {
    return std::string(ChangesOfRun(With({}), With(overrides), {}).status().message());
  };
  EXPECT_THAT(
      changed({"actor.pretrain=/models/b"}),
      AllOf(HasSubstr("run in /runs/a cannot go on"), HasSubstr("  actor.pretrain: \"/models/a\" -> \"/models/b\"\n"),
            HasSubstr("  reference.pretrain: \"/models/a\" -> \"/models/b\"\n"),
            HasSubstr("train.allow_changed_run=true")));
  EXPECT_THAT(changed({"seed=1"}), AllOf(HasSubstr("set the options as they were (its run.textproto has them); or, to"),
                                         HasSubstr("in another run_dir"), Not(HasSubstr("files"))));
  const std::vector<ChangedInput> files = {{.option = "data.prompt_data", .path = "/a.jsonl", .change = "other rows"}};
  EXPECT_THAT(std::string(ChangesOfRun(With({}), With({}), files).status().message()),
              AllOf(HasSubstr("The ways out: bring the files back as they were"), HasSubstr("allow_changed_run=true"),
                    Not(HasSubstr("run.textproto"))));
  EXPECT_THAT(std::string(ChangesOfRun(With({}), With({"seed=1"}), files).status().message()),
              AllOf(HasSubstr("(its run.textproto has them), and bring the files back")));
  EXPECT_THAT(changed({"data.shuffle=false", "train.max_steps=3"}),
              AllOf(HasSubstr("data.shuffle: true -> false"), Not(HasSubstr("max_steps"))));
  const std::vector<std::string> chats = {"data.apply_chat_template=true", "data.template_date=2025-12-31"};
  const auto on_day = [&](const std::string& date) {
    return std::string(
        ChangesOfRun(With(chats), With({chats[0], "data.template_date=" + date}), {}).status().message());
  };
  EXPECT_EQ(on_day("2025-12-31"), "");
  EXPECT_THAT(on_day("2026-01-01"), HasSubstr("  data.template_date: \"2025-12-31\" -> \"2026-01-01\"\n"));
  // Before it was written down.
  EXPECT_THAT(ChangesOfRun(With({chats[0]}), With(chats), {}).value(),
              ElementsAre("data.template_date: nothing -> \"2025-12-31\""));
  for (const char* other :
       {"seed=1", "rollout.rollout_batch_size=64", "data.prompt_data=/a.jsonl,/b.jsonl", "data.input_key=question",
        "data.apply_chat_template=true", "critic.pretrain=/models/b", "rollout.n_samples_per_prompt=2"}) {
    EXPECT_THAT(changed({other}), HasSubstr("cannot go on")) << other;
    EXPECT_EQ(changed({other, "train.load_checkpoint=true", "train.allow_changed_run=true"}), "") << other;
  }
}

TEST(Continuation, IsOfTheSameProgramAndOfAdaptersOfTheSameShape) {
  const auto error = [](const RunConfig& before, const RunConfig& now) {
    return std::string(ChangesOfRun(before, now, {}).status().message());
  };
  const auto of_sft = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"run_dir=/runs/a", "actor.pretrain=/models/a", "sft.data=/rows.jsonl"});
    return LoadRunConfig("", overrides, "", Program::kSft).value();
  };
  const std::vector<std::string> anyway = {"train.load_checkpoint=true", "train.allow_changed_run=true"};
  EXPECT_THAT(error(With({}), of_sft(anyway)), HasSubstr("has a run of the program ppo, with which sft cannot go on"));
  EXPECT_THAT(error(of_sft({}), With(anyway)), HasSubstr("has a run of the program sft, with which ppo cannot go on"));
  EXPECT_THAT(error(of_sft({"actor.lora.r=4"}), of_sft({"actor.lora.r=8", anyway[0], anyway[1]})),
              AllOf(HasSubstr("actor.lora.r: 4 -> 8: the run in /runs/a"), Not(HasSubstr("allow_changed_run"))));
  EXPECT_THAT(error(of_sft({}), of_sft({"actor.lora.r=8", anyway[0], anyway[1]})), HasSubstr("nothing -> "));
  EXPECT_EQ(error(of_sft({"actor.lora.r=8"}), of_sft({"actor.lora.r=8", anyway[0]})), "");
  EXPECT_EQ(error(of_sft({"actor.lora.r=8"}), of_sft({"actor.lora.r=8", "actor.lora.target_modules=all-linear"})), "");
  EXPECT_THAT(error(With({"critic.lora.r=4"}), With({"critic.lora.r=8", anyway[0], anyway[1]})),
              HasSubstr("critic.lora.r: 4 -> 8: the run in "));
  EXPECT_THAT(error(With({"critic.lora.r=4"}), With(anyway)), HasSubstr("critic.lora.alpha: 32 -> nothing"));
}

}  // namespace
}  // namespace quartet
