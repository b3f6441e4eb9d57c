#include "quickstart/sorting_task.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/config/services.h"
#include "quickstart/tiny_model.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;

// The task.
constexpr char kAlphabet[] = "abcdefghijklmnop";
constexpr size_t kLetters = 5;
constexpr size_t kTrainProblems = 4000;
constexpr size_t kHeldoutProblems = 200;
constexpr double kRightDemonstrations = 0.30;  // the others sort downwards

// The vocabulary: special tokens, space and "=", then the letters.
constexpr int32_t kVocabulary = 2 + 2 + 26;

constexpr int kPromptMaxLen = 16;
constexpr int kAnswerMaxLen = 7;  // five letters, the end token, and room for one too many

constexpr uint64_t kTaskPurpose = 5;

std::string DrawWord(Random& random) {
  std::vector<char> letters(kAlphabet, kAlphabet + sizeof(kAlphabet) - 1);
  random.Shuffle(letters);
  return std::string(letters.begin(), letters.begin() + kLetters);
}

std::string Sorted(std::string word) {
  std::sort(word.begin(), word.end());
  return word;
}

SortingProblem Problem(const std::string& word) { return {absl::StrCat("sort ", word, "="), Sorted(word)}; }

absl::Status WriteProblems(const std::string& path, const std::vector<SortingProblem>& problems, const char* key) {
  std::string lines;
  for (const SortingProblem& problem : problems) {
    Json object;
    object["prompt"] = problem.prompt;
    object[key] = problem.label;
    absl::StrAppend(&lines, object.dump(), "\n");
  }
  return AtomicWriteFile(path, lines);
}

}  // namespace

SortingTask MakeSortingTask(uint64_t seed) {
  Random random = Random::Of({seed, kTaskPurpose});
  SortingTask task;
  std::set<std::string> heldout_sets;
  while (task.heldout.size() < kHeldoutProblems) {
    const std::string word = DrawWord(random);
    if (heldout_sets.insert(Sorted(word)).second) task.heldout.push_back(Problem(word));
  }
  std::set<std::string> words;
  while (task.train.size() < kTrainProblems) {
    const std::string word = DrawWord(random);
    if (heldout_sets.count(Sorted(word)) == 0 && words.insert(word).second) task.train.push_back(Problem(word));
  }
  for (const SortingProblem& problem : task.train) {
    std::string response = problem.label;
    const bool right = random.Below(1'000'000) < static_cast<uint64_t>(kRightDemonstrations * 1e6);
    if (!right) std::reverse(response.begin(), response.end());
    task.demonstrations.push_back({problem.prompt, response});
  }
  return task;
}

ModelConfig SortingModelConfig() { return TinyDecoder(kVocabulary); }

std::string SortingTokenizerJson() {
  // How byte-level tokenizers write a space.
  std::vector<std::string> characters = {"\u0120", "="};
  for (char letter = 'a'; letter <= 'z'; ++letter) characters.emplace_back(1, letter);
  return CharacterTokenizerJson({"<pad>", "<eos>"}, characters);
}

absl::Status WriteSortingTask(const std::string& folder, uint64_t seed, SortingTaskFiles* files) {
  *files = {.model = folder + "/model",
            .sft = folder + "/demonstrations.jsonl",
            .train = folder + "/train.jsonl",
            .heldout = folder + "/heldout.jsonl"};
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder));
  const SortingTask task = MakeSortingTask(seed);
  QUARTET_RETURN_IF_ERROR(WriteProblems(files->sft, task.demonstrations, "response"));
  QUARTET_RETURN_IF_ERROR(WriteProblems(files->train, task.train, "label"));
  QUARTET_RETURN_IF_ERROR(WriteProblems(files->heldout, task.heldout, "label"));
  return WriteTinyModelFolder(files->model, SortingModelConfig(), seed, SortingTokenizerJson(),
                              TinyTokenizerConfigJson(/*chat_template=*/""));
}

RunConfig SortingSftConfig(const SortingTaskFiles& files, const std::string& run_dir, uint64_t seed) {
  RunConfig config;
  config.set_run_dir(run_dir);
  config.set_seed(seed);
  config.mutable_sft()->add_data(files.sft);
  config.mutable_train()->set_train_batch_size(64);
  config.mutable_train()->set_max_steps(300);
  ConfigureTinyTrainer(config.mutable_actor(), files.model);
  config.mutable_actor()->set_learning_rate(3e-3);
  config.mutable_actor()->set_max_len(kPromptMaxLen + kAnswerMaxLen);
  config.mutable_actor()->set_lr_warmup_ratio(0.03);
  ConfigureTinyService(config.mutable_services()->mutable_policy_trainer());
  return config;
}

RunConfig SortingPpoConfig(const SortingTaskFiles& files, const std::string& policy, const std::string& run_dir,
                           uint64_t seed, double actor_learning_rate) {
  RunConfig config;
  config.set_run_dir(run_dir);
  config.set_seed(seed);

  config.mutable_data()->add_prompt_data(files.train);
  config.mutable_data()->set_prompt_max_len(kPromptMaxLen);
  config.mutable_eval()->add_data(files.heldout);

  RolloutConfig* rollout = config.mutable_rollout();
  rollout->set_rollout_batch_size(256);
  rollout->set_n_samples_per_prompt(1);
  rollout->set_generate_max_len(kAnswerMaxLen);
  rollout->set_temperature(1);
  rollout->set_dtype("fp32");
  rollout->set_kv_cache_bytes(16 << 20);

  AlgorithmConfig* algorithm = config.mutable_algorithm();
  algorithm->set_gamma(1);
  algorithm->set_lambd(1);
  algorithm->set_eps_clip(0.2f);
  algorithm->set_value_clip(0.2f);
  algorithm->mutable_kl()->set_init_kl_coef(0.01f);
  algorithm->mutable_kl()->set_kl_estimator("k1");

  ConfigureTinyTrainer(config.mutable_actor(), policy);
  config.mutable_actor()->set_learning_rate(actor_learning_rate);
  if (actor_learning_rate == 0) config.mutable_actor()->set_allow_zero_learning_rate(true);
  ConfigureTinyTrainer(config.mutable_critic(), policy);
  config.mutable_critic()->set_learning_rate(1e-3);

  config.mutable_reward()->add_source()->set_rule("exact_match");
  config.mutable_train()->set_max_steps(50);
  config.mutable_train()->set_train_batch_size(128);
  for (ServicePlacement* placement :
       {config.mutable_services()->mutable_rollout(), config.mutable_services()->mutable_policy_trainer(),
        config.mutable_services()->mutable_critic_trainer(), config.mutable_services()->mutable_scorer()}) {
    ConfigureTinyService(placement);
  }
  return config;
}

void UseMethod(const RunConfig& preset, RunConfig* config) {
  const int sequences = config->rollout().rollout_batch_size() * config->rollout().n_samples_per_prompt();
  *config->mutable_algorithm() = preset.algorithm();
  // All right answers have one length, which is the longest there is.
  config->mutable_algorithm()->clear_overlong_buffer_len();
  config->mutable_algorithm()->clear_overlong_penalty_factor();
  // So many that groups with right and wrong answers are common.
  const int samples = std::min(preset.rollout().n_samples_per_prompt(), 16);
  if (samples > 1) {
    config->mutable_rollout()->set_n_samples_per_prompt(samples);
    config->mutable_rollout()->set_rollout_batch_size(sequences / samples);
  }
  // Where the critic makes optimizer steps of its own number, they belong to the method.
  if (preset.train().has_critic_updates_per_batch()) {
    config->mutable_train()->set_updates_per_batch(preset.train().updates_per_batch());
    config->mutable_train()->set_critic_updates_per_batch(preset.train().critic_updates_per_batch());
  }
  if (UsesCritic(*config)) return;
  config->clear_critic();
  config->mutable_services()->clear_critic_trainer();
}

}  // namespace quartet
