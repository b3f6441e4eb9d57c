#include "orchestrator/data/preference_pairs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/config/services.h"
#include "orchestrator/data/conversation.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/data/example_maker.h"

namespace quartet {
namespace {

constexpr char kPreferencePrompt[] = "preference.input_key";
constexpr char kChosenOption[] = "preference.chosen_key";
constexpr char kRejectedOption[] = "preference.rejected_key";
constexpr char kMarginOption[] = "preference.margin_key";

struct Answers {
  Conversation chosen, rejected;
};

absl::StatusOr<Answers> ReadAnswers(const Record& record, const PreferenceConfig& p, const DataConfig& data) {
  const OptionKey prompt = {p.input_key(), kPreferencePrompt};
  const OptionKey chosen = {p.chosen_key(), kChosenOption}, rejected = {p.rejected_key(), kRejectedOption};
  Answers answers;
  QUARTET_ASSIGN_OR_RETURN(answers.chosen, ReadAnswered(record, prompt, chosen, data));
  QUARTET_ASSIGN_OR_RETURN(answers.rejected, ReadAnswered(record, prompt, rejected, data));
  const auto &a = answers.chosen.messages, &b = answers.rejected.messages;
  const std::string both =
      absl::StrCat(FieldName(chosen.key, chosen.option), " and ", FieldName(rejected.key, rejected.option));
  if (a.size() != b.size() || !std::equal(a.begin(), a.end() - 1, b.begin())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the conversations ", both, " differ before their last messages, which are to be compared"));
  }
  if (a.back() == b.back()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the answers ", both,
                     " are the same, which teaches nothing (data.skip_malformed=true leaves such rows out and counts "
                     "them)"));
  }
  return answers;
}

absl::StatusOr<float> ReadMargin(const Record& record, const std::string& key) {
  if (key.empty()) return 0;
  const std::string& text = record.fields.at(key);
  float margin = 0;
  if (absl::SimpleAtof(text, &margin) && std::isfinite(margin)) return margin;
  return absl::InvalidArgumentError(
      absl::StrCat("field ", FieldName(key, kMarginOption), " is \"", text, "\"; it must be a finite number"));
}

absl::StatusOr<PreferencePair> MakePair(const Record& record, const PreferenceConfig& preference,
                                        const DataConfig& data, const ExampleMaker& maker) {
  // Whatever is wrong with a row, it is not well-formed, but for one that is too long.
  const absl::StatusOr<Answers> answers = ReadAnswers(record, preference, data);
  if (!answers.ok()) return absl::InvalidArgumentError(answers.status().message());
  PreferencePair pair;
  QUARTET_ASSIGN_OR_RETURN(pair.margin, ReadMargin(record, preference.margin_key()));
  QUARTET_ASSIGN_OR_RETURN(pair.chosen, maker.Make(answers->chosen));
  QUARTET_ASSIGN_OR_RETURN(pair.rejected, maker.Make(answers->rejected));
  if (std::ranges::equal(pair.chosen.ids(), pair.rejected.ids())) {
    return absl::InvalidArgumentError(absl::StrCat(FieldName(preference.chosen_key(), kChosenOption), " and ",
                                                   FieldName(preference.rejected_key(), kRejectedOption),
                                                   " are the same to the model: the same token ids"));
  }
  return pair;
}

}  // namespace

uint64_t HashItem(const PreferencePair& pair, uint64_t seed) {
  seed = HashItem(pair.rejected, HashItem(pair.chosen, seed));
  return HashBytes({reinterpret_cast<const char*>(&pair.margin), sizeof(pair.margin)}, seed);
}

absl::StatusOr<std::unique_ptr<PreferencePairs>> OpenPreferencePairs(const RunConfig& config, bool held_out,
                                                                     const std::string& model,
                                                                     const Tokenizer& tokenizer,
                                                                     const std::vector<int64_t>& model_end_ids,
                                                                     const RowProgress& progress) {
  const PreferenceConfig& p = config.preference();
  const TrainerConfig& trainer = TrainerOf(config, model);
  ExampleOptions example = {.data = config.data(),
                            .section = "preference",
                            .model = model,
                            .model_folder = trainer.pretrain(),
                            .max_len = trainer.max_len(),
                            .model_end_ids = model_end_ids};
  if (p.has_end_token()) example.end_token = p.end_token();
  QUARTET_ASSIGN_OR_RETURN(const std::shared_ptr<const ExampleMaker> maker,
                           ExampleMaker::Create(std::move(example), tokenizer));
  DatasetOptions options = DatasetOptionsOf(config);
  options.option = held_out ? "preference.eval_data" : "preference.data";
  const auto& files = held_out ? p.eval_data() : p.data();
  options.paths.assign(files.begin(), files.end());
  if (held_out) options.shuffle = false;
  options.keys = ConversationKeys(p.input_key(), kPreferencePrompt, config.data());
  options.keys.front().optional = true;  // whole conversations have it
  options.keys.push_back({.name = p.chosen_key(), .option = kChosenOption, .list = true});
  options.keys.push_back({.name = p.rejected_key(), .option = kRejectedOption, .list = true});
  if (!p.margin_key().empty()) options.keys.push_back({.name = p.margin_key(), .option = kMarginOption});
  const auto make = [p, data = config.data(), maker](const Record& record) {
    return MakePair(record, p, data, *maker);
  };
  return PreferencePairs::Open(options, make, progress);
}

}  // namespace quartet
