#include "quickstart/guessing_task.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "quickstart/tiny_model.h"

namespace quartet {
namespace {

constexpr int kNumbers = 7;
constexpr int kGuesses = 4;

// A message is one character behind the mark of who says it; <eos> ends the model's.
constexpr char kChatTemplate[] =
    "{% for message in messages %}{% if message.role == 'assistant' %}<assistant>{{ message.content }}<eos>"
    "{% else %}<user>{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

constexpr int kTurnPromptMaxLen = 3;  // <user>, what it says, <assistant>
constexpr int kTurnAnswerMaxLen = 2;  // the number and <eos>
constexpr int kConversationMaxLen = kGuesses * (kTurnPromptMaxLen + kTurnAnswerMaxLen);

// `times` rows of each number.
absl::Status WriteNumbers(const std::string& path, int times) {
  std::string lines;
  for (int i = 0; i < times * kNumbers; ++i) {
    absl::StrAppend(&lines, nlohmann::json{{"prompt", "?"}, {"label", absl::StrCat(1 + i % kNumbers)}}.dump(), "\n");
  }
  return AtomicWriteFile(path, lines);
}

}  // namespace

absl::Status WriteGuessingTask(const std::string& folder, uint64_t seed, GuessingTaskFiles* files) {
  *files = {.model = folder + "/model", .train = folder + "/train.jsonl", .heldout = folder + "/heldout.jsonl"};
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder));
  QUARTET_RETURN_IF_ERROR(WriteNumbers(files->train, 100));
  QUARTET_RETURN_IF_ERROR(WriteNumbers(files->heldout, 8));
  const std::vector<std::string> special = {"<pad>", "<eos>", "<user>", "<assistant>"};
  std::vector<std::string> characters = {"?", "<", ">"};
  for (int number = 1; number <= kNumbers; ++number) characters.push_back(absl::StrCat(number));
  return WriteTinyModelFolder(files->model, TinyDecoder(std::ssize(special) + std::ssize(characters)), seed,
                              CharacterTokenizerJson(special, characters), TinyTokenizerConfigJson(kChatTemplate));
}

RunConfig GuessingConfig(const GuessingTaskFiles& files, const std::string& agent, const std::string& run_dir,
                         uint64_t seed) {
  RunConfig config;
  config.set_run_dir(run_dir);
  config.set_seed(seed);

  config.mutable_data()->add_prompt_data(files.train);
  config.mutable_data()->set_apply_chat_template(true);
  config.mutable_data()->set_prompt_max_len(kTurnPromptMaxLen);
  config.mutable_eval()->add_data(files.heldout);

  AgentConfig* player = config.mutable_agent();
  player->set_command(agent);
  player->set_kept(true);
  player->set_max_turns(kGuesses);

  RolloutConfig* rollout = config.mutable_rollout();
  rollout->set_rollout_batch_size(32);
  rollout->set_n_samples_per_prompt(8);
  rollout->set_generate_max_len(kTurnAnswerMaxLen);
  rollout->set_temperature(1);
  rollout->set_dtype("fp32");
  rollout->set_kv_cache_bytes(16 << 20);

  AlgorithmConfig* algorithm = config.mutable_algorithm();
  algorithm->set_advantage_estimator("rloo");
  algorithm->mutable_kl()->set_init_kl_coef(0);

  ConfigureTinyTrainer(config.mutable_actor(), files.model);
  config.mutable_actor()->set_max_len(kConversationMaxLen);
  config.mutable_actor()->set_learning_rate(1e-3);
  config.mutable_train()->set_max_steps(80);
  config.mutable_train()->set_train_batch_size(32);
  for (ServicePlacement* placement :
       {config.mutable_services()->mutable_rollout(), config.mutable_services()->mutable_policy_trainer(),
        config.mutable_services()->mutable_scorer()}) {
    ConfigureTinyService(placement);
  }
  return config;
}

}  // namespace quartet
