#include "orchestrator/data/sft_examples.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "orchestrator/data/conversation.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/data/example_maker.h"

namespace quartet {
namespace {

constexpr char kSftPrompt[] = "sft.input_key";
constexpr char kAnswerOption[] = "sft.output_key";

}  // namespace

uint64_t HashItem(const TokenSequence& example, uint64_t seed) {
  std::string bytes;
  QUARTET_CHECK(example.SerializeToString(&bytes));
  return HashBytes(bytes, seed);
}

absl::StatusOr<std::unique_ptr<SftExamples>> OpenSftExamples(const RunConfig& config, const Tokenizer& tokenizer,
                                                             const std::vector<int64_t>& model_end_ids,
                                                             const RowProgress& progress) {
  const SftConfig& sft = config.sft();
  ExampleOptions example = {.data = config.data(),
                            .section = "sft",
                            .multiturn = sft.multiturn(),
                            .model = "actor",
                            .model_folder = config.actor().pretrain(),
                            .max_len = config.actor().max_len(),
                            .model_end_ids = model_end_ids};
  if (sft.has_end_token()) example.end_token = sft.end_token();
  QUARTET_ASSIGN_OR_RETURN(const std::shared_ptr<const ExampleMaker> maker,
                           ExampleMaker::Create(std::move(example), tokenizer));
  DatasetOptions options = DatasetOptionsOf(config);
  options.option = "sft.data";
  options.paths.assign(sft.data().begin(), sft.data().end());
  options.keys = ConversationKeys(sft.input_key(), kSftPrompt, config.data());
  // Messages may have the answer.
  options.keys.push_back(
      {.name = sft.output_key(), .option = kAnswerOption, .list = true, .spared_by = sft.input_key()});
  const auto make = [sft, data = config.data(), maker](const Record& record) -> absl::StatusOr<TokenSequence> {
    // Whatever is wrong with a row, it is not well-formed, but for one that is too long.
    const absl::StatusOr<Conversation> conversation =
        ReadAnswered(record, {sft.input_key(), kSftPrompt}, {sft.output_key(), kAnswerOption}, data);
    if (!conversation.ok()) return absl::InvalidArgumentError(conversation.status().message());
    return maker->Make(*conversation);
  };
  return SftExamples::Open(options, make, progress);
}

}  // namespace quartet
