#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "core/config/eval_sets.h"
#include "core/config/run_config.h"
#include "core/config/template_date.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Strings = std::vector<std::string>;

RunConfig Load(const Strings& overrides) {
  const auto config = LoadRunConfig("", overrides, "/base");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(RunConfig());
}

std::string Error(const Strings& overrides) {
  const absl::Status status = LoadRunConfig("", overrides, "/base").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(DataOptions, AListIsSetWithCommasOrAsInAFile) {
  EXPECT_THAT(Load({"data.prompt_data=my.parquet"}).data().prompt_data(), ElementsAre("/base/my.parquet"));
  EXPECT_THAT(Load({"data.prompt_data=a,/b"}).data().prompt_data(), ElementsAre("/base/a", "/b"));
  EXPECT_THAT(Load({"data.prompt_data=/first", R"(data.prompt_data=["/a,b", "/c"])"}).data().prompt_data(),
              ElementsAre("/first", "/a,b", "/c"));
  EXPECT_THAT(Load({"data.prompt_data=/old", "data.prompt_data="}).data().prompt_data(), IsEmpty());
  EXPECT_THAT(Load({"data.prompt_data=/a,/b", "data.prompt_data_probs=0.25,0.75"}).data().prompt_data_probs(),
              ElementsAre(0.25, 0.75));
  EXPECT_THAT(Load({"rollout.stop_token_ids=[1, 2]"}).rollout().stop_token_ids(), ElementsAre(1, 2));
  EXPECT_THAT(Error({"data.prompt_data_probs=1,x"}), HasSubstr("'x' is not a finite number"));
  EXPECT_THAT(Error({"rollout.stop_token_ids=1,"}), HasSubstr("'' is not a whole number"));
  EXPECT_THAT(
      Error({"data.prompt_data=[a, b]"}),
      HasSubstr(
          "Expected string, got: a; a list that begins with [ is written as in a file, such as [\"a,b\", \"c\"]"));
  EXPECT_THAT(Error({"data.prompt_data.0=a"}), HasSubstr("'prompt_data' is a list of values and has no fields"));
}

TEST(DataOptions, EachFileOfAMixtureHasAProbability) {
  EXPECT_EQ(Error({"data.prompt_data=a,b", "data.prompt_data_probs=1"}),
            "data.prompt_data_probs: a list of 1 is not allowed; one for each of the 2 files of data.prompt_data");
  EXPECT_THAT(Error({"data.prompt_data=a,b", "data.prompt_data_probs=1,0"}), StartsWith("data.prompt_data_probs"));
  EXPECT_THAT(Error({"data.prompt_data=a,,b"}), HasSubstr("each is the path of a file"));
}

TEST(DataOptions, ATemplateWritesADayThatThereIs) {
  const Strings chat = {"data.apply_chat_template=true"};
  EXPECT_EQ(TemplateDate(Load(chat).data()).value(), std::nullopt);
  EXPECT_EQ(TemplateDate(Load({chat[0], "data.template_date=2024-02-29"}).data()).value(), absl::CivilDay(2024, 2, 29));
  for (const char* date : {"2023-02-29", "29.02.2024", "2024-02-29T10:00:00", "today", "2024-2-9", "2025-7-1",
                           "0000-01-01", "1969-12-31", "99999-01-01", " 2024-02-29"}) {
    EXPECT_EQ(Error({chat[0], std::string("data.template_date=") + date}),
              std::string("data.template_date: \"") + date +
                  "\" is not allowed; a day such as \"2026-11-28\", of the years 1970 to 9999");
  }
  EXPECT_THAT(Error({"data.template_date=2024-02-29"}), HasSubstr("data.template_date has no effect"));
}

TEST(DataOptions, AnInputTemplateHasOnePlaceForThePrompt) {
  EXPECT_EQ(Load({}).data().input_template(), "{}");
  for (const char* text : {"none", "{} and {}", "{prompt}"}) {
    EXPECT_THAT(Error({std::string("data.input_template=") + text}), HasSubstr("{} stands in it once")) << text;
  }
}

TEST(DataOptions, ToolsNeedAChatTemplate) {
  EXPECT_THAT(Error({"data.tools_key=tools"}), StartsWith("data.tools_key has no effect"));
  EXPECT_EQ(Load({"data.tools_key=tools", "data.apply_chat_template=true"}).data().tools_key(), "tools");
}

TEST(DataOptions, ToolsAreGivenToAChatTemplateInOneWay) {
  const std::string chat = "data.apply_chat_template=true", tools = R"(data.chat_template_kwargs={"tools": []})";
  EXPECT_EQ(
      Error({chat, tools, "data.tools_key=functions"}),
      "data.chat_template_kwargs: '{\"tools\": []}' is not allowed; no \"tools\", since data.tools_key (\"functions\") "
      "gives each row's to the template; set one of them");
  EXPECT_EQ(Load({chat, tools}).data().tools_key(), "");
  EXPECT_EQ(
      Load({chat, "data.tools_key=functions", R"(data.chat_template_kwargs={"thinks": true})"}).data().tools_key(),
      "functions");
}

TEST(DataOptions, EvaluationSetsHaveWhatIsNotSetFromEvalAndData) {
  const RunConfig config =
      Load({"data.input_key=question", "data.label_key=answer", "data.label_extract=after_####",
            "eval.data=/x/gsm8k.jsonl", "eval.max_samples=50", "eval.set.0.data=math.parquet",
            "eval.set.0.temperature=0.6", "eval.set.0.n_samples_per_prompt=8", "eval.set.1.data=aime.parquet",
            "eval.set.1.name=aime24", "eval.set.1.label_key=reward_model.ground_truth", "eval.set.1.label_extract=none",
            "eval.set.1.temperature=1", "eval.set.1.n_samples_per_prompt=4", "eval.set.1.k=2,4"});
  const std::vector<EvalSet> sets = EvalSets(config);
  ASSERT_EQ(sets.size(), 3);
  EXPECT_EQ(sets[0].name(), "gsm8k");
  EXPECT_EQ(sets[0].input_key(), "question");
  EXPECT_EQ(sets[0].label_extract(), "after_####");
  EXPECT_EQ(sets[0].temperature(), 0);
  EXPECT_EQ(sets[0].n_samples_per_prompt(), 1);
  EXPECT_THAT(sets[0].k(), ElementsAre(1));
  EXPECT_EQ(sets[1].name(), "math");
  EXPECT_EQ(sets[1].data(), "/base/math.parquet");
  EXPECT_EQ(sets[1].label_key(), "answer");
  EXPECT_EQ(sets[1].max_samples(), 50);
  EXPECT_THAT(sets[1].k(), ElementsAre(1, 8));
  EXPECT_EQ(sets[2].name(), "aime24");
  EXPECT_EQ(sets[2].label_key(), "reward_model.ground_truth");
  EXPECT_EQ(sets[2].label_extract(), "none");
  EXPECT_THAT(sets[2].k(), ElementsAre(2, 4));
  // As the run folder keeps it.
  RunConfig again = config;
  ASSERT_TRUE(ResolveRunConfig(&again, "/elsewhere").ok());
  EXPECT_EQ(PrintRunConfig(again), PrintRunConfig(config));
}

TEST(DataOptions, EvaluationSetsAreChecked) {
  EXPECT_THAT(Error({"eval.data=a", "eval.n_samples_per_prompt=4"}),
              HasSubstr("eval.temperature is 0, so that all answers to a prompt are the same"));
  EXPECT_THAT(Error({"eval.data=a", "eval.top_p=0.9"}), StartsWith("eval.top_p has no effect"));
  EXPECT_THAT(Error({"eval.data=a", "eval.k=2"}), StartsWith("eval.k"));
  EXPECT_THAT(Error({"eval.set.0.data=a", "eval.set.0.k=1,1"}), HasSubstr("each k stands there once"));
  EXPECT_THAT(Error({"eval.set.0.name=a"}), StartsWith("eval.set[0].data is not set"));
  EXPECT_THAT(Error({"eval.data=x/a.jsonl,y/a.parquet"}), HasSubstr("another set has that name"));
  EXPECT_THAT(Error({"eval.data=my set.jsonl"}), HasSubstr("visible ASCII characters without /"));
  EXPECT_THAT(Error({"train.eval_steps=1"}), StartsWith("train.eval_steps has no effect"));
  EXPECT_THAT(Error({"eval.set.0.data=a", "eval.set.0.label_extract=boxed"}), HasSubstr("after_####"));
}

}  // namespace
}  // namespace quartet
