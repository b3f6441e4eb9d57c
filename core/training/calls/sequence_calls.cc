#include "core/training/calls/sequence_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/training/batch/sequence_tree.h"

namespace quartet {

MicroBatching ForwardBatching(const std::string& name, const TrainerConfig& config, const SequenceCost& cost) {
  return {.limit = {.sequences = config.micro_rollout_batch_size(), .tokens = config.max_tokens_per_micro_batch()},
          .tokens_option = absl::StrCat(name, ".max_tokens_per_micro_batch"),
          .cost = cost};
}

MicroBatching UpdateBatching(const std::string& name, const TrainerConfig& config, const SequenceCost& cost) {
  MicroBatching batching = ForwardBatching(name, config, cost);
  batching.limit.sequences = config.micro_train_batch_size();
  return batching;
}

namespace {

// That `tokens` of `what` fit in a micro-batch.
absl::Status CheckFits(const std::string& what, int64_t tokens, const MicroBatching& batching) {
  if (batching.limit.tokens == 0 || tokens <= batching.limit.tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", tokens, " tokens, which fit in no micro-batch: ",
                                                 batching.tokens_option, " is ", batching.limit.tokens));
}

}  // namespace

absl::StatusOr<BatchSplit> SplitSequences(const std::vector<const TokenSequence*>& sequences, int ranks,
                                          const MicroBatching& batching) {
  for (const TokenSequence* sequence : sequences) {
    QUARTET_RETURN_IF_ERROR(
        CheckFits(absl::StrCat("sequence ", sequence->index(), ": ids has"), sequence->ids_size(), batching));
  }
  return SplitTree(sequences, ranks, batching.limit, batching.cost);
}

absl::StatusOr<BatchSplit> SplitPairs(const std::vector<const TokenSequence*>& sequences, int ranks,
                                      const MicroBatching& batching) {
  std::vector<BatchItem> batch;
  batch.reserve(sequences.size() / 2);
  for (size_t i = 0; i < sequences.size(); i += 2) {
    batch.push_back(TogetherOf({sequences[i], sequences[i + 1]}, batching.cost));
    batch.back().sequences = 1;  // the limit counts pairs
    QUARTET_RETURN_IF_ERROR(CheckFits(absl::StrCat("sequences ", sequences[i]->index(), " and ",
                                                   sequences[i + 1]->index(), ", a pair, together have"),
                                      batch.back().tokens, batching));
  }
  MicroBatchLimit limit = batching.limit;
  if (limit.sequences > 0) limit.sequences = std::max<int64_t>(1, limit.sequences / 2);
  BatchSplit split = SplitBatch(batch, ranks, limit);
  for (std::vector<size_t>& items : split.items) {
    std::vector<size_t> members;
    members.reserve(2 * items.size());
    for (size_t pair : items) members.insert(members.end(), {2 * pair, 2 * pair + 1});
    items = std::move(members);
  }
  for (std::vector<uint32_t>& sizes : split.micro_batch_sizes) {
    for (uint32_t& size : sizes) size *= 2;
  }
  return split;
}

absl::StatusOr<std::vector<TokenValues>> RunForward(RankGroup& group, const std::string& method, ForwardCall call,
                                                    const std::vector<const TokenSequence*>& sequences,
                                                    const MicroBatching& batching, const Deadline& deadline) {
  if (sequences.empty()) return std::vector<TokenValues>();
  QUARTET_ASSIGN_OR_RETURN(const BatchSplit split, SplitSequences(sequences, group.world_size(), batching));
  const auto sequence = [&](size_t i) -> const TokenSequence& { return *sequences[i]; };
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankOutput> outputs,
                           group.Run(method, MakeInputs(std::move(call), sequence, split), deadline));

  std::vector<TokenValues> replies(sequences.size());
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    if (outputs[rank].items.size() != split.items[rank].size()) {
      return absl::InternalError(absl::StrCat("rank ", rank, " answered ", outputs[rank].items.size(), " of ",
                                              split.items[rank].size(), " sequences of ", method));
    }
    for (size_t i = 0; i < split.items[rank].size(); ++i) {
      const size_t item = split.items[rank][i];
      if (!replies[item].ParseFromString(outputs[rank].items[i]) || replies[item].index() != sequences[item]->index()) {
        return absl::InternalError(
            absl::StrCat("rank ", rank, " answered another sequence than ", sequences[item]->index(), " in ", method));
      }
    }
  }
  return replies;
}

}  // namespace quartet
