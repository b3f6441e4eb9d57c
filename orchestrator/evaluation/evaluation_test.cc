#include "orchestrator/evaluation/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <tuple>

#include "core/base/status_macros.h"
#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/byte_tokenizer.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

// One answer to each prompt, unless `fails`, and something to say of it.
class WarningAnswers : public AnswerSource {
 public:
  explicit WarningAnswers(const absl::Status& fails) : fails_(fails) {}
  absl::StatusOr<std::vector<PromptAnswer>> Draw(const DrawPlace&, const GenerateHeader&,
                                                 const std::vector<const PromptRecord*>& prompts, int64_t,
                                                 const AnswerFunction&) override {
    QUARTET_RETURN_IF_ERROR(fails_);
    std::vector<PromptAnswer> answers(prompts.size());
    for (size_t i = 0; i < answers.size(); ++i) answers[i].prompt = i;
    return answers;
  }
  std::vector<std::string> TakeWarnings() override { return {"an agent was slow"}; }

 private:
  const absl::Status fails_;
};

TEST(Evaluation, WritesWarningsAsOfTheProgramThatEvaluatesWhereItFailsToo) {
  const ScratchFolder scratch;
  RunConfig config;
  config.set_run_dir(scratch.path() + "/run");
  const auto folder = RunFolder::Create(config);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_EQ((*folder)->BeginAfter(0), absl::OkStatus());
  EvaluationSet set;
  set.options.set_name("held_out");
  set.options.set_n_samples_per_prompt(1);
  set.prompts.emplace_back();
  const ByteTokenizer tokenizer;
  ScorerClient nobody(nullptr);  // without sources of rewards it is not asked
  std::FILE* const terminal = std::tmpfile();
  TerminalView view(terminal, false);
  for (const auto& [program, name, fails] :
       {std::tuple(Program::kEvaluate, "evaluate", absl::OkStatus()),
        std::tuple(Program::kPpo, "orchestrator", absl::UnavailableError("no answer"))}) {
    WarningAnswers answers(fails);
    EXPECT_EQ(EvaluateSets({config, tokenizer, answers, nobody, **folder, view, program}, {set}, {}, 0).status(),
              fails);
    EXPECT_THAT(scratch.Read("run/events.jsonl"), HasSubstr(absl::StrCat("\"from\":\"", name, "\"")));
  }
  std::fclose(terminal);
}

TEST(Evaluation, RefusesSettingsOfWhichFlagsHaveTheSay) {
  const auto message = [](const ValueOrigins& origins, bool has_model) {
    return std::string(CheckSetByFlags(origins, has_model).message());
  };
  EXPECT_EQ(message({{"run_dir", "--set"}}, false),
            "--set=run_dir has no effect: --output says where results go; leave it out");
  EXPECT_EQ(message({{"run_dir", "/runs/first/run.textproto"}, {"rollout.pretrain", "--set"}}, false), "");
  EXPECT_EQ(message({{"rollout.pretrain", "--set"}}, true),
            "--set=rollout.pretrain has no effect: --model says what is evaluated; leave it out");
  EXPECT_EQ(message({{"actor.pretrain", "--set"}}, true),
            "--set=actor.pretrain has no effect: the tokenizer is that of --model; leave it out");
  EXPECT_EQ(message({{"actor.pretrain", "/runs/first/run.textproto"}, {"eval.data", "--set"}}, true), "");
}

// Else the model that the run began with is evaluated.
TEST(Evaluation, RefusesAnotherActorBesideTheRolloutOfARunsConfiguration) {
  const ValueOrigins run = {{"actor.pretrain", "--set"}, {"rollout.pretrain", "/runs/first/run.textproto"}};
  EXPECT_EQ(CheckSetByFlags(run, /*has_model=*/false).message(),
            "--set=actor.pretrain has no effect: rollout.pretrain, set by /runs/first/run.textproto, says what is "
            "evaluated; give the model, or the checkpoint, by --model; leave it out");
  EXPECT_TRUE(CheckSetByFlags({{"actor.pretrain", "--set"}}, /*has_model=*/false).ok());
  EXPECT_TRUE(CheckSetByFlags({{"actor.pretrain", "--set"}, {"rollout.pretrain", "--set"}}, false).ok());
}

TEST(Evaluation, NamesTheFlagThatSaysTheModelInItsErrors) {
  const absl::Status error = absl::NotFoundError("rollout.pretrain: /m has no config.json");
  EXPECT_EQ(NamingFlags(true, error), absl::NotFoundError("--model: /m has no config.json"));
  EXPECT_EQ(NamingFlags(false, error), error);
  EXPECT_EQ(
      NamingFlags(true, absl::InvalidArgumentError("rollout.max_model_len is 9; the model (actor.pretrain) has 8")),
      absl::InvalidArgumentError("rollout.max_model_len is 9; the model (--model) has 8"));
  EXPECT_EQ(NamingFlags(true, absl::OkStatus()), absl::OkStatus());
}

TEST(Evaluation, NamesTheFlagThatSaysWhereResultsGo) {
  EXPECT_EQ(NamingFlags(false, absl::AlreadyExistsError("run_dir /e is not empty (it has logs); give a new folder")),
            absl::AlreadyExistsError("--output /e is not empty (it has logs); give a new folder"));
}

}  // namespace
}  // namespace quartet
