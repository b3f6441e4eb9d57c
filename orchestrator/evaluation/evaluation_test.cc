#include "orchestrator/evaluation/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/byte_tokenizer.h"
#include "core/clients/testing/fake_services.h"
#include "core/run_folder/run_start.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

class NoAnswers final : public AnswerSource {
 public:
  absl::StatusOr<std::vector<PromptAnswer>> Draw(const DrawPlace&, const GenerateHeader&,
                                                 const std::vector<const PromptRecord*>&, int64_t,
                                                 const AnswerFunction&) override {
    return absl::UnavailableError("no answer");
  }
  std::vector<std::string> TakeWarnings() override { return {"it is late"}; }
};

TEST(Evaluation, TellsWhatThereIsToKnowOfAnswersThatFail) {
  const ScratchFolder scratch;
  const FakeServices services;
  RunConfig config = services.MakeConfig(scratch.path(), 1);
  config.mutable_eval()->add_data(config.data().prompt_data(0));
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  const ByteTokenizer tokenizer;
  Cancellation cancellation;
  const Services clients = ConnectServices(config, &cancellation).value();
  const RunStart start = OpenRun(config, "", {}, [] { return absl::OkStatus(); }).value();
  char* shown = nullptr;
  size_t size = 0;
  std::FILE* const terminal = open_memstream(&shown, &size);
  NoAnswers answers;
  {
    TerminalView view(terminal, false);
    EXPECT_EQ(EvaluateSets(config, LoadEvaluationSets(config, tokenizer).value(), {.name = "a model"}, 0, tokenizer,
                           answers, *clients.scorer, *start.folder, view)
                  .status(),
              absl::UnavailableError("no answer"));
  }
  std::fclose(terminal);
  EXPECT_THAT(shown, HasSubstr("warning: it is late"));
  std::free(shown);
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
  EXPECT_EQ(NamingModelFlag(error), absl::NotFoundError("--model: /m has no config.json"));
  EXPECT_EQ(NamingModelFlag(absl::InvalidArgumentError("rollout.max_model_len is 9; the model (actor.pretrain) has 8")),
            absl::InvalidArgumentError("rollout.max_model_len is 9; the model (--model) has 8"));
  EXPECT_EQ(NamingModelFlag(absl::OkStatus()), absl::OkStatus());
}

}  // namespace
}  // namespace quartet
