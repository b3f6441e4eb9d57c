#include "quickstart/sorting_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {
namespace {

std::string LettersOf(const SortingProblem& problem) { return problem.prompt.substr(5, 5); }

TEST(SortingTask, KeepsHeldOutAnswersOutOfTraining) {
  const SortingTask task = MakeSortingTask(3);
  EXPECT_EQ(task.train.size(), 4000);
  EXPECT_EQ(task.heldout.size(), 200);
  std::set<std::string> trained, prompts;
  for (const SortingProblem& problem : task.train) {
    trained.insert(problem.label);
    prompts.insert(problem.prompt);
  }
  EXPECT_EQ(prompts.size(), 4000);
  std::set<std::string> heldout;
  for (const SortingProblem& problem : task.heldout) {
    EXPECT_EQ(trained.count(problem.label), 0) << problem.prompt;
    EXPECT_TRUE(heldout.insert(problem.label).second);
  }
}

TEST(SortingTask, HasRightAnswers) {
  const SortingTask task = MakeSortingTask(4);
  for (const SortingProblem& problem : task.train) {
    EXPECT_EQ(problem.prompt, "sort " + LettersOf(problem) + "=");
    EXPECT_TRUE(std::is_permutation(problem.label.begin(), problem.label.end(), problem.prompt.begin() + 5));
    EXPECT_TRUE(std::is_sorted(problem.label.begin(), problem.label.end()));
  }
}

TEST(SortingTask, ShowsTheRightOrderOneTimeInThree) {
  const SortingTask task = MakeSortingTask(5);
  ASSERT_EQ(task.demonstrations.size(), task.train.size());
  int right = 0;
  for (size_t i = 0; i < task.train.size(); ++i) {
    std::string reversed = task.train[i].label;
    std::reverse(reversed.begin(), reversed.end());
    EXPECT_TRUE(task.demonstrations[i].label == task.train[i].label || task.demonstrations[i].label == reversed);
    right += task.demonstrations[i].label == task.train[i].label;
  }
  EXPECT_NEAR(right / 4000.0, 0.30, 0.03);
}

TEST(SortingTask, FollowsFromTheSeed) {
  EXPECT_EQ(MakeSortingTask(1).train[7].prompt, MakeSortingTask(1).train[7].prompt);
  EXPECT_NE(MakeSortingTask(1).train[7].prompt, MakeSortingTask(2).train[7].prompt);
}

TEST(SortingTask, HasATokenizerOfOneTokenACharacter) {
  const ScratchFolder scratch;
  SortingTaskFiles files;
  const absl::Status written = WriteSortingTask(scratch.path() + "/start", 1, &files);
  ASSERT_TRUE(written.ok()) << written;
  const auto tokenizer = Tokenizer::Load(files.model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 30);
  const std::vector<int32_t> ids = *(*tokenizer)->Encode("sort dbeac=", true);
  EXPECT_EQ(ids, (std::vector<int32_t>{22, 18, 21, 23, 2, 7, 5, 8, 4, 6, 3}));
  EXPECT_EQ((*tokenizer)->Decode(ids, true), "sort dbeac=");
  EXPECT_EQ((*tokenizer)->Decode({4, 5, 1}, true), "ab");

  const auto model = ReadModelConfig(files.model);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->vocab_size, 30);
  EXPECT_EQ(model->eos_token_ids, (std::vector<int64_t>{1}));
}

TEST(SortingTask, HasConfigurationsThatResolve) {
  SortingTaskFiles files = {.model = "/m", .sft = "/s", .train = "/t", .heldout = "/h"};
  RunConfig sft = SortingSftConfig(files, "/run/sft", 1);
  ASSERT_TRUE(ResolveRunConfig(&sft, "", Program::kSft).ok());
  EXPECT_TRUE(CheckFor(sft, Program::kSft).ok()) << CheckFor(sft, Program::kSft);
  for (double rate : {4e-4, 0.0}) {
    RunConfig ppo = SortingPpoConfig(files, "/p", "/run", 1, rate);
    const absl::Status status = ResolveRunConfig(&ppo, "");
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(CheckFor(ppo, Program::kPpo).ok()) << CheckFor(ppo, Program::kPpo);
  }
}

}  // namespace
}  // namespace quartet
