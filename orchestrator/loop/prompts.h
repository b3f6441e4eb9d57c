// Prompts: read, tokenised and put in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/jsonl.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct PromptRecord {
  std::string text;   // as the model sees it: with prefix, suffix and chat template
  std::string label;  // as the rules see it; empty where the file has none
  std::vector<int32_t> ids;
};

// The prompts of `file`, read as `data` says (keys, template, label_extract), at most `max_samples` (0 = all). A
// missing label is an error where `label_required`. INVALID_ARGUMENT names file and line; so it does for a prompt
// without any token or longer than data.prompt_max_len().
absl::StatusOr<std::vector<PromptRecord>> LoadPrompts(const JsonlFile& file, const DataConfig& data,
                                                      int64_t max_samples, bool label_required,
                                                      const Tokenizer& tokenizer);

// Which prompts a step takes: epoch after epoch, each in an order of its own that follows from the seed alone. A batch
// may reach over the end of an epoch. Immutable but for a cache; one thread.
class PromptOrder {
 public:
  // prompts > 0.
  PromptOrder(uint64_t seed, int64_t prompts) : seed_(seed), prompts_(prompts) {}

  // Indices of the prompts number [begin, begin + count) of the run.
  std::vector<int64_t> Take(int64_t begin, int64_t count);

 private:
  uint64_t seed_;
  int64_t prompts_;
  int64_t epoch_ = -1;
  std::vector<int64_t> permutation_;
};

}  // namespace quartet
