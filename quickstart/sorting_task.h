// The quickstart's task, tokenizer, model and hyper-parameters: the whole recipe, in one place.
//
// The task: "sort dbeac=" -> "abcde". Five distinct letters of a to p. Fine-tuning sees demonstrations of mixed
// quality: some sort upwards, most sort downwards. So the fine-tuned model is right some of the time; PPO is told by
// its reward alone that upwards is right. Words of the held-out problems have sets of letters that no training word
// has: neither a held-out problem nor a held-out answer is ever seen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/model/model_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct SortingTaskFiles {
  std::string model;    // Hugging Face folder with random weights and the task's tokenizer
  std::string sft;      // JSONL of {"prompt", "response"}
  std::string train;    // JSONL of {"prompt", "label"}
  std::string heldout;  // JSONL of {"prompt", "label"}
};

struct SortingProblem {
  std::string prompt;  // "sort dbeac="
  std::string label;   // "abcde"
};

struct SortingTask {
  std::vector<SortingProblem> train;
  std::vector<SortingProblem> heldout;
  std::vector<SortingProblem> demonstrations;  // label: the response to imitate
};

// A function of the seed alone.
SortingTask MakeSortingTask(uint64_t seed);

// The shape of the model.
ModelConfig SortingModelConfig();

// tokenizer.json: one token a character.
std::string SortingTokenizerJson();

// Makes `folder` and writes all files into it.
absl::Status WriteSortingTask(const std::string& folder, uint64_t seed, SortingTaskFiles* files);

// The configurations of the two phases. Not resolved yet.
RunConfig SortingSftConfig(const SortingTaskFiles& files, const std::string& run_dir, uint64_t seed);
RunConfig SortingPpoConfig(const SortingTaskFiles& files, const std::string& policy, const std::string& run_dir,
                           uint64_t seed, double actor_learning_rate);

// Gives the run of SortingPpoConfig a preset's method: its algorithm and answers to a prompt, at the task's sizes and
// learning rates.
void UseMethod(const RunConfig& preset, RunConfig* config);

// Of the actor's, unless the user gives another.
inline constexpr double kSortingActorLearningRate = 4e-4;

}  // namespace quartet
