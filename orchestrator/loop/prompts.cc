#include "orchestrator/loop/prompts.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/jsonl.h"
#include "core/data/label.h"
#include "orchestrator/loop/random.h"

namespace quartet {
namespace {

constexpr uint64_t kShufflePurpose = 1;

absl::Status AtLine(const std::string& path, int line, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ":", line, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::vector<PromptRecord>> LoadPrompts(const std::string& path, const DataConfig& data,
                                                      int64_t max_samples, bool label_required,
                                                      const Tokenizer& tokenizer) {
  const std::string& label_key = data.label_key();
  QUARTET_ASSIGN_OR_RETURN(std::vector<Record> records,
                           ReadJsonl(path, {data.input_key(), label_required ? label_key : "?" + label_key}));
  if (max_samples > 0 && static_cast<int64_t>(records.size()) > max_samples) records.resize(max_samples);
  std::vector<PromptRecord> prompts;
  prompts.reserve(records.size());
  for (const Record& record : records) {
    PromptRecord prompt;
    prompt.text = absl::StrCat(data.prompt_prefix(), record.fields.at(data.input_key()), data.prompt_suffix());
    // A chat template writes the special tokens itself.
    if (data.apply_chat_template()) {
      QUARTET_ASSIGN_OR_RETURN(prompt.text, tokenizer.ApplyChatTemplate({{"user", prompt.text}}));
    }
    absl::StatusOr<std::vector<int32_t>> ids =
        tokenizer.Encode(prompt.text, /*add_special_tokens=*/!data.apply_chat_template());
    if (!ids.ok()) return AtLine(path, record.line, ids.status());
    prompt.ids = *std::move(ids);
    if (auto label = record.fields.find(label_key); label != record.fields.end()) {
      absl::StatusOr<std::string> extracted = ExtractLabel(label->second, data.label_extract());
      if (!extracted.ok()) return AtLine(path, record.line, extracted.status());
      prompt.label = *std::move(extracted);
    }
    if (prompt.ids.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", record.line, ": the prompt has no token"));
    }
    if (static_cast<int64_t>(prompt.ids.size()) > data.prompt_max_len()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", record.line, ": the prompt has ", prompt.ids.size(),
                                                     " tokens, more than data.prompt_max_len (", data.prompt_max_len(),
                                                     ")"));
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<int64_t> PromptOrder::Take(int64_t begin, int64_t count) {
  std::vector<int64_t> indices;
  indices.reserve(count);
  for (int64_t i = begin; i < begin + count; ++i) {
    if (i / prompts_ != epoch_) {
      epoch_ = i / prompts_;
      permutation_.resize(prompts_);
      std::iota(permutation_.begin(), permutation_.end(), 0);
      Random::Of({seed_, kShufflePurpose, static_cast<uint64_t>(epoch_)}).Shuffle(permutation_);
    }
    indices.push_back(permutation_[i % prompts_]);
  }
  return indices;
}

}  // namespace quartet
