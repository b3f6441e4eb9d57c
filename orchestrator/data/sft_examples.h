// Examples of fine-tuning, read from rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/dataset.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/data/example_maker.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The examples of config.sft().data(), their actions being what is trained on: the tokens of the answer (with
// sft.multiturn, of all of the assistant's) up to its end token. Each answer follows the very ids that generation would
// have for its prompt. Rows are checked and taken as Dataset does. One thread.
class SftExamples {
 public:
  ~SftExamples();

  // `model_end_ids`: the model's end tokens; may be empty where sft.end_token is set. The tokenizer outlives this.
  //
  // INVALID_ARGUMENT names the option, or file and row of an example without an answer, whose chat template does not
  // write an answer behind its prompt, or, where these are not left out, that is longer than actor.max_len.
  static absl::StatusOr<std::unique_ptr<SftExamples>> Open(
      const RunConfig& config, const Tokenizer& tokenizer, const std::vector<int64_t>& model_end_ids,
      const std::function<void(int64_t done, int64_t all)>& progress = nullptr);

  const Dataset& rows() const { return *dataset_; }
  // Of the first row that is used.
  const TokenSequence& first() const { return first_; }
  // Those at the positions [begin, begin + count).
  absl::StatusOr<std::vector<TokenSequence>> Take(int64_t begin, int64_t count);

 private:
  SftExamples();
  absl::StatusOr<TokenSequence> Make(const Record& record) const;

  RunConfig config_;
  std::unique_ptr<ExampleMaker> maker_;
  std::unique_ptr<Dataset> dataset_;
  TokenSequence first_;
};

}  // namespace quartet
