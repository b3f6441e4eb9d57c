#include "orchestrator/quickstart/sorting_task.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/base/files.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/config/services.h"
#include "core/model/initialize.h"

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
constexpr int32_t kPad = 0;
constexpr int32_t kEos = 1;
constexpr int32_t kSpace = 2;
constexpr int32_t kEquals = 3;
constexpr int32_t kFirstLetter = 4;
constexpr int32_t kVocabulary = kFirstLetter + 26;

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

void ConfigureService(ServicePlacement* placement) {
  placement->set_listen("127.0.0.1:0");
  placement->set_ranks(2);
  placement->set_threads(1);
}

// What actor and critic have in common, in both phases.
void ConfigureTrainer(TrainerConfig* trainer, const std::string& model) {
  trainer->set_pretrain(model);
  trainer->set_dtype("fp32");
  trainer->set_lr_scheduler("cosine");
  trainer->set_lr_warmup_ratio(0.1);
  trainer->set_min_lr_ratio(0.1);
  trainer->set_gradient_checkpointing(false);
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

ModelConfig SortingModelConfig() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = kVocabulary;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 16;
  config.max_position_embeddings = 128;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 10000;
  config.tie_word_embeddings = false;
  config.initializer_range = 0.05;
  config.pad_token_id = kPad;
  config.eos_token_ids = {kEos};
  return config;
}

std::string SortingTokenizerJson() {
  Json tokenizer;
  tokenizer["version"] = "1.0";
  tokenizer["truncation"] = nullptr;
  tokenizer["padding"] = nullptr;
  tokenizer["added_tokens"] = Json::array();
  Json vocabulary;
  for (const auto& [id, content] : {std::pair(kPad, "<pad>"), std::pair(kEos, "<eos>")}) {
    vocabulary[content] = id;
    Json token;
    token["id"] = id;
    token["content"] = content;
    for (const char* property : {"single_word", "lstrip", "rstrip", "normalized"}) token[property] = false;
    token["special"] = true;
    tokenizer["added_tokens"].push_back(token);
  }
  vocabulary["\u0120"] = kSpace;  // how byte-level tokenizers write a space
  vocabulary["="] = kEquals;
  for (char letter = 'a'; letter <= 'z'; ++letter) vocabulary[std::string(1, letter)] = kFirstLetter + (letter - 'a');
  tokenizer["normalizer"] = nullptr;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  tokenizer["pre_tokenizer"] = byte_level;
  tokenizer["post_processor"] = nullptr;
  tokenizer["decoder"] = byte_level;
  Json model;
  model["type"] = "BPE";
  model["dropout"] = nullptr;
  model["unk_token"] = nullptr;
  model["continuing_subword_prefix"] = nullptr;
  model["end_of_word_suffix"] = nullptr;
  model["fuse_unk"] = false;
  model["byte_fallback"] = false;
  model["ignore_merges"] = false;
  model["vocab"] = vocabulary;
  model["merges"] = Json::array();
  tokenizer["model"] = model;
  return tokenizer.dump(2) + "\n";
}

std::string SortingTokenizerConfigJson() {
  Json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["eos_token"] = "<eos>";
  config["pad_token"] = "<pad>";
  config["clean_up_tokenization_spaces"] = false;
  config["model_max_length"] = 128;
  return config.dump(2) + "\n";
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
  QUARTET_RETURN_IF_ERROR(
      WriteRandomModel(SortingModelConfig(), HeadKind::kVocabulary, seed, Dtype::kF32, files->model));
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(files->model + "/tokenizer.json", SortingTokenizerJson()));
  return AtomicWriteFile(files->model + "/tokenizer_config.json", SortingTokenizerConfigJson());
}

RunConfig SortingSftConfig(const SortingTaskFiles& files, const std::string& run_dir, uint64_t seed) {
  RunConfig config;
  config.set_run_dir(run_dir);
  config.set_seed(seed);
  config.mutable_sft()->add_data(files.sft);
  config.mutable_train()->set_train_batch_size(64);
  config.mutable_train()->set_max_steps(300);
  ConfigureTrainer(config.mutable_actor(), files.model);
  config.mutable_actor()->set_learning_rate(3e-3);
  config.mutable_actor()->set_max_len(kPromptMaxLen + kAnswerMaxLen);
  config.mutable_actor()->set_lr_warmup_ratio(0.03);
  ConfigureService(config.mutable_services()->mutable_policy_trainer());
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

  ConfigureTrainer(config.mutable_actor(), policy);
  config.mutable_actor()->set_learning_rate(actor_learning_rate);
  if (actor_learning_rate == 0) config.mutable_actor()->set_allow_zero_learning_rate(true);
  ConfigureTrainer(config.mutable_critic(), policy);
  config.mutable_critic()->set_learning_rate(1e-3);

  config.mutable_reward()->add_source()->set_rule("exact_match");
  config.mutable_train()->set_max_steps(50);
  config.mutable_train()->set_train_batch_size(128);
  for (ServicePlacement* placement :
       {config.mutable_services()->mutable_rollout(), config.mutable_services()->mutable_policy_trainer(),
        config.mutable_services()->mutable_critic_trainer(), config.mutable_services()->mutable_scorer()}) {
    ConfigureService(placement);
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
