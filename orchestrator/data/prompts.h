// Prompts: read, put through the template, tokenised.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/run_folder/run_inputs.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/made_rows.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct PromptRecord {
  std::string text;            // as the model sees it: with template and chat template
  std::string label;           // as the rules see it; empty where the file has none
  std::string source;          // data.source_key's, else the file's name
  std::string metrics_source;  // the same; "other" where there are too many to have metrics of their own
  std::string row;             // other fields of the row, a JSON object; "" where no program reads them
  std::string messages;        // of the conversation, a JSON list of ChatMessage; "" unless HasAgent
  std::string place;           // where its row is, for errors: option, file and line
  std::vector<int32_t> ids;
};

uint64_t HashItem(const PromptRecord& prompt, uint64_t seed);

// Where prompts are from, in the order in which they are read.
class PromptSources {
 public:
  static constexpr size_t kMost = 100;  // whose metrics are told apart

  // Sets metrics_source.
  void Count(PromptRecord* prompt);
  const std::set<std::string>& names() const { return names_; }

 private:
  std::set<std::string> names_;
};

// The training prompts of a run, which are read when they are taken. One thread.
class Prompts {
 public:
  // Those of config.data(). Rows are checked as Dataset does; the tokenizer outlives this. A row without the label is
  // not well-formed where a rule needs it or data.label_required says so, nor is one whose label a source of the reward
  // cannot read. INVALID_ARGUMENT names option, file and row.
  static absl::StatusOr<std::unique_ptr<Prompts>> Open(const RunConfig& config, const Tokenizer& tokenizer,
                                                       const RowProgress& progress = nullptr);

  const Dataset& rows() const { return made_->rows(); }
  // Prompts of an epoch.
  int64_t size() const { return rows().rows(); }
  // Of the first row that is used.
  const PromptRecord& first() const { return made_->first(); }
  // Where prompts are from, for metrics, as far as they were read.
  const std::set<std::string>& sources() const { return sources_.names(); }
  // Of which prompts there are: the ids of those that were checked, the files of the others.
  uint64_t hash() const { return made_->hash(); }

  // Those at the positions [begin, begin + count) of the run.
  absl::StatusOr<std::vector<std::shared_ptr<const PromptRecord>>> Take(int64_t begin, int64_t count);

 private:
  Prompts() = default;
  PromptSources sources_;
  std::unique_ptr<MadeRows<PromptRecord>> made_;
};

// All prompts of a set of held-out ones, in the order of its file, in memory. `option` names the file in errors.
struct HeldOutPrompts {
  std::vector<PromptRecord> prompts;
  std::string description;      // DescribeRows
  std::vector<RunInput> files;  // its file
};
absl::StatusOr<HeldOutPrompts> ReadHeldOutPrompts(const EvalSet& set, const std::string& option,
                                                  const RunConfig& config, const Tokenizer& tokenizer,
                                                  const RowProgress& progress = nullptr);

}  // namespace quartet
