// What a user is told whose text is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/files/files.h"
#include "core/config/field_paths.h"
#include "core/config/run_config.h"
#include "core/config/text/names_elsewhere.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// The error that a file of `text` gives, without the path.
std::string ErrorIn(const std::string& text, const std::string& ending = "") {
  std::string path = ::testing::TempDir() + "/text_XXXXXX" + ending;
  close(mkstemps(path.data(), static_cast<int>(ending.size())));
  EXPECT_TRUE(AtomicWriteFile(path, text).ok());
  const absl::Status status = LoadRunConfig(path, {}, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const std::string message(status.message());
  EXPECT_EQ(message.find(path + ":"), 0) << message;
  return message.substr(path.size() + 1);
}

std::string OverrideError(const std::string& override_text) {
  return std::string(LoadRunConfig("", {override_text}, "").status().message());
}

TEST(ConfigText, AMisspeltFieldIsShownTheNearestName) {
  EXPECT_EQ(ErrorIn("seed: 1\nrollout {\n  temprature: 1\n}\n").substr(0, 2), "3:");
  EXPECT_THAT(ErrorIn("rollout {\n  temprature: 1\n}\n"),
              EndsWith("rollout has no field named \"temprature\"; did you mean 'temperature'?"));
  EXPECT_THAT(ErrorIn("algorithm { kl { ini_kl_coeff: 1 } }"),
              EndsWith("algorithm.kl has no field named \"ini_kl_coeff\"; did you mean 'init_kl_coef'?"));
  EXPECT_THAT(ErrorIn("rolout { }"), HasSubstr("RunConfig has no field named \"rolout\"; did you mean 'rollout'?"));
  EXPECT_THAT(OverrideError("rollout.temprature=1"),
              HasSubstr("no field 'temprature' in rollout; did you mean 'temperature'? (there are: "));
  EXPECT_THAT(OverrideError("tarin.max_steps=1"), HasSubstr("no field 'tarin'; did you mean 'train'?"));
}

TEST(ConfigText, ANameThatIsNearToNoneIsNotGuessed) {
  EXPECT_THAT(ErrorIn("rollout { cheese: 1 }"), EndsWith("rollout has no field named \"cheese\""));
}

TEST(ConfigText, ANameOfAnotherSystemIsShownTheFieldHere) {
  EXPECT_THAT(OverrideError("actor.lr=1"), HasSubstr("no field 'lr' in actor; did you mean 'learning_rate'?"));
  EXPECT_THAT(ErrorIn("critic { l2: 0.1 }"),
              EndsWith("critic has no field named \"l2\"; did you mean 'weight_decay'?"));
  EXPECT_THAT(OverrideError("train.num_generations=4"),
              HasSubstr("did you mean 'n_samples_per_prompt', a field of rollout"));
  EXPECT_THAT(OverrideError("kl_coef=0"), HasSubstr("kl_coef is algorithm.kl.init_kl_coef here"));
  EXPECT_THAT(OverrideError("actor.load_in_4bit=true"), HasSubstr("; what other systems mean by it is not there"));
}

TEST(ConfigText, AWholeNameOfAnotherSystemIsShownTheFieldHereAndWhatDiffers) {
  EXPECT_THAT(OverrideError("algo.kl.init_coef=0"),
              HasSubstr("no field 'algo'; OpenRLHF's algo.kl.init_coef is algorithm.kl.init_kl_coef here: 0 loads"));
  EXPECT_THAT(OverrideError("train.micro_batch_size=1"),
              HasSubstr("OpenRLHF's train.micro_batch_size is actor.micro_train_batch_size here"));
  EXPECT_THAT(OverrideError("rollout.batch_size=1"),
              HasSubstr("OpenRLHF's rollout.batch_size is rollout.rollout_batch_size here: prompts of a step"));
  EXPECT_THAT(OverrideError("ds.lora.rank=8"), HasSubstr("OpenRLHF's ds.lora.rank is actor.lora.r here"));
  EXPECT_THAT(OverrideError("actor_rollout_ref.rollout.n=8"), HasSubstr("is rollout.n_samples_per_prompt here"));
  EXPECT_THAT(OverrideError("reward_model.reward_manager=dapo"),
              HasSubstr("verl's reward_model.reward_manager is reward.source.command here: there are no managers"));
  EXPECT_THAT(OverrideError("n_samples=8"), HasSubstr("n_samples is rollout.n_samples_per_prompt here"));
  EXPECT_THAT(OverrideError("beta=0.1"),
              HasSubstr("it is a field of preference; TRL's beta is algorithm.kl.init_kl_coef"));
  EXPECT_THAT(OverrideError("generation_batch_size=8"), HasSubstr("prompts, not answers"));
  EXPECT_THAT(OverrideError("use_vllm=true"), HasSubstr("the rollout service generates"));
  EXPECT_THAT(ErrorIn("train { micro_batch_size: 1 }"), HasSubstr("is actor.micro_train_batch_size here"));
  EXPECT_THAT(ErrorIn("algo { kl { init_coef: 1 } }"),
              HasSubstr("docs/migrating.md has the names of OpenRLHF: algo.advantage.estimator is "
                        "algorithm.advantage_estimator here"));
  EXPECT_THAT(ErrorIn("ds { zero_stage: 3 }"), HasSubstr("ds.zero_stage is actor.zero_stage here"));
  EXPECT_THAT(OverrideError("algorithm.advantage_estimator=group_norm"), EndsWith("; it is \"grpo\" here"));
}

TEST(ConfigText, TheTablesOfOtherSystemsNameFieldsAndValuesThatAreHere) {
  const auto& root = *RunConfig::descriptor();
  EXPECT_GT(NamesElsewhere().size(), 150);
  for (const NameElsewhere& name : NamesElsewhere()) {
    EXPECT_FALSE(name.there.empty());
    EXPECT_TRUE(!name.here.empty() || !name.meaning.empty()) << name.there.front() << ": what is instead?";
    for (const std::string& here : name.here) {
      // Of a list of groups the table leaves out which one.
      std::string path = here;
      if (path.starts_with("reward.source.")) path.insert(sizeof("reward.source.") - 1, "0.");
      EXPECT_TRUE(IsFieldPath(path, root)) << name.there.front() << ": " << here;
    }
    for (const std::string& there : name.there) {
      const bool is_ours = name.here == std::vector<std::string>{there};
      EXPECT_TRUE(is_ours || !IsFieldPath(there, root) || there.find('.') == std::string::npos) << there;
    }
  }
  EXPECT_GT(ValuesElsewhere().size(), 5);
  for (const ValueElsewhere& value : ValuesElsewhere()) {
    const auto with = [&value](std::string_view text) {
      return LoadRunConfig("", {std::string(value.field) + "=" + std::string(text)}, "").status();
    };
    EXPECT_TRUE(with(value.here).ok()) << with(value.here);
    EXPECT_THAT(std::string(with(value.there).message()),
                HasSubstr("; it is \"" + std::string(value.here) + "\" here"));
  }
}

TEST(ConfigText, AFieldInTheWrongPlaceIsShownItsPlace) {
  EXPECT_THAT(ErrorIn("temperature: 1"), EndsWith("it is a field of rollout, eval.set, eval"));
  EXPECT_THAT(ErrorIn("rollout { kl_target: 1 }"), EndsWith("it is a field of algorithm.kl"));
  EXPECT_THAT(OverrideError("zero_stage=2"),
              HasSubstr("it is a field of rollout, actor, critic, reference, reward.source"));
}

TEST(ConfigText, AMissingBraceIsNamedByWhatItWouldClose) {
  EXPECT_EQ(ErrorIn("# a run\nseed: 1\nrollout {\n  temperature: 1\n}\n\ntrain {\n  max_steps: 3\n"),
            "9:1: the file ends inside train {, opened at line 7");
  EXPECT_THAT(ErrorIn("reward {\n  source {  # } \"{\n    rule: \"num}ber\"\n  }\n  # no more"),
              EndsWith("the file ends inside reward {, opened at line 1"));
  EXPECT_THAT(ErrorIn("reward {\n source: { rule: 'a\\'}' }\n source:\n {\n"),
              EndsWith("the file ends inside source {, opened at line 4"));
  EXPECT_THAT(ErrorIn("rollout {\n\ttemperature: 1\n\ntrain { max_steps: 3 }\n"),
              HasSubstr("is a } missing before it? It is inside rollout {, opened at line 1"));
}

TEST(ConfigText, ABraceTooManyClosesNothing) {
  EXPECT_EQ(ErrorIn("train { max_steps: 3 }\n}\nseed: 1\n"), "2:1: this } closes nothing");
}

TEST(ConfigText, AFieldThatIsGivenTwiceIsNamedWithBothLines) {
  EXPECT_EQ(ErrorIn("seed: 1\nrollout { top_p: 0.9\n}\nseed: 2\n"),
            "4:5: seed is given twice; the first time at line 1");
  EXPECT_EQ(ErrorIn("reward {\n source { weight: 2 }\n source {\n  weight: 2\n\n  weight: 3 }\n}\n"),
            "6:9: weight is given twice; the first time at line 4");
  EXPECT_THAT(ErrorIn("actor { pretrain: 'a' }\ntrain { max_steps: 1 }\nactor { zero_stage: 2 }\n"),
              HasSubstr("actor is given twice; the first time at line 1"));
}

TEST(ConfigText, OtherFormatsAreToldApart) {
  const std::string yaml = "rollout:\n  temperature: 0.8\n";
  EXPECT_THAT(ErrorIn(yaml), HasSubstr("protobuf text format, not YAML, such as: rollout { temperature: 0.8"));
  EXPECT_THAT(ErrorIn("---\nseed: 1\n"), HasSubstr("not YAML"));
  EXPECT_THAT(ErrorIn("reward:\n  # rules\n  - rule: number\n"), HasSubstr("not YAML"));
  EXPECT_THAT(ErrorIn("seed=1\n", ".yaml"), HasSubstr("not YAML"));
  EXPECT_THAT(ErrorIn("{ \"seed\": 1 }"), HasSubstr("protobuf text format, not JSON"));
  EXPECT_THAT(ErrorIn("rollout: {\n  dtype:\n  \"bf16\n }"), Not(HasSubstr("YAML")));
  EXPECT_THAT(ErrorIn("seed: \"one\"\n"), EndsWith("1:7: Expected integer, got: \"one\""));
}

TEST(ConfigText, NamesTheMissingFile) {
  const absl::Status status = LoadRunConfig("/nonexistent/run.textproto", {}, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("--config: cannot open /nonexistent/run.textproto"),
                                                   HasSubstr("relative paths start at ")));
}

TEST(ConfigText, NamesAFolderThatIsGivenForAFile) {
  const absl::Status status = LoadRunConfig(testing::TempDir(), {}, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--config: "), HasSubstr("is a folder, not a regular file")));
}

}  // namespace
}  // namespace quartet
