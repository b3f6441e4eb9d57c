// The leader's side of a call over all ranks: split, run, join. gRPC-free and LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/training/batch/batch_split.h"
#include "core/training/batch/sequence_cost.h"
#include "core/training/engine/rank_calls.pb.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// How the sequences of a method are cut into micro-batches.
struct MicroBatching {
  MicroBatchLimit limit;
  std::string tokens_option;  // where limit.tokens comes from, such as "actor.max_tokens_per_micro_batch"
  SequenceCost cost;
};

// Of the section `name` ("actor" or "critic") of a resolved configuration: for forwards without gradient, for updates.
MicroBatching ForwardBatching(const std::string& name, const TrainerConfig& config, const SequenceCost& cost);
MicroBatching UpdateBatching(const std::string& name, const TrainerConfig& config, const SequenceCost& cost);

// Splits `sequences` over `ranks`. INVALID_ARGUMENT names a sequence that is longer than limit.tokens.
absl::StatusOr<BatchSplit> SplitSequences(const std::vector<const TokenSequence*>& sequences, int ranks,
                                          const MicroBatching& batching);

// The same of pairs, a sequence and its next: the two stay neighbours in one micro-batch, and limit.sequences, halved
// but at least 1, counts pairs. There is an even number of sequences. INVALID_ARGUMENT names a pair that is longer than
// limit.tokens.
absl::StatusOr<BatchSplit> SplitPairs(const std::vector<const TokenSequence*>& sequences, int ranks,
                                      const MicroBatching& batching);

// Runs `method`, whose handler takes a ForwardCall and TokenSequences and gives one TokenValues for each, over all
// ranks. `call.micro_batch_sizes` is filled in. Returns the replies in the order of `sequences`. Without sequences
// nothing is run.
absl::StatusOr<std::vector<TokenValues>> RunForward(RankGroup& group, const std::string& method, ForwardCall call,
                                                    const std::vector<const TokenSequence*>& sequences,
                                                    const MicroBatching& batching, const Deadline& deadline);

// To each rank the items that `split` gives it, and `call` with their micro_batch_sizes. `item(i)` is message i. What
// the leader itself is given is not serialised.
template <typename Call, typename Items>
std::vector<RankInput> MakeInputs(Call call, const Items& item, const BatchSplit& split) {
  std::vector<RankInput> inputs(split.items.size());
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    const std::vector<uint32_t>& sizes = split.micro_batch_sizes[rank];
    call.mutable_micro_batch_sizes()->Assign(sizes.begin(), sizes.end());
    inputs[rank].header = call.SerializeAsString();
    if (rank > 0) {
      for (size_t i : split.items[rank]) inputs[rank].items.push_back(item(i).SerializeAsString());
      continue;
    }
    std::vector<std::decay_t<decltype(item(0))>> own;
    own.reserve(split.items[rank].size());
    for (size_t i : split.items[rank]) own.push_back(item(i));
    inputs[rank].own_items = std::move(own);
  }
  return inputs;
}

// What an optimizer step over all ranks came to.
template <typename Reply>
struct UpdateOutcome {
  Reply reply;                    // what every trainer's reply has is filled in
  std::vector<UpdateSums> parts;  // by rank

  double Sum(double (UpdateSums::*sum)() const) const {
    double total = 0;
    for (const UpdateSums& part : parts) total += (part.*sum)();
    return total;
  }
  // Mean over all action tokens; 0 where there are none.
  double Mean(double (UpdateSums::*sum)() const) const {
    return reply.action_tokens() == 0 ? 0 : Sum(sum) / static_cast<double>(reply.action_tokens());
  }
  // Of a loss of pairs.
  PairStats Pairs() const {
    PairStats stats;
    for (const UpdateSums& part : parts) stats.set_pairs(stats.pairs() + part.pairs());
    const double pairs = static_cast<double>(stats.pairs());
    stats.set_accuracy(Sum(&UpdateSums::preferred) / pairs);
    stats.set_chosen_reward(Sum(&UpdateSums::chosen_rewards) / pairs);
    stats.set_rejected_reward(Sum(&UpdateSums::rejected_rewards) / pairs);
    stats.set_margin(stats.chosen_reward() - stats.rejected_reward());
    return stats;
  }
};

// Runs `method`, whose handler takes an UpdateCall and TrainingSequences and answers UpdateSums, over all ranks.
// `call.micro_batch_sizes` is filled in. `pairs`: of a loss of pairs.
template <typename Reply>
absl::StatusOr<UpdateOutcome<Reply>> RunUpdate(RankGroup& group, const std::string& method, UpdateCall call,
                                               const std::vector<TrainingSequence>& sequences,
                                               const MicroBatching& batching, bool pairs, const Deadline& deadline) {
  std::vector<const TokenSequence*> tokens;
  tokens.reserve(sequences.size());
  for (const TrainingSequence& sequence : sequences) tokens.push_back(&sequence.tokens());
  QUARTET_ASSIGN_OR_RETURN(const BatchSplit split,
                           (pairs ? SplitPairs : SplitSequences)(tokens, group.world_size(), batching));
  const auto item = [&](size_t i) -> const TrainingSequence& { return sequences[i]; };
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankOutput> outputs,
                           group.Run(method, MakeInputs(std::move(call), item, split), deadline));
  UpdateOutcome<Reply> outcome;
  QUARTET_ASSIGN_OR_RETURN(outcome.parts, ParseSummaries<UpdateSums>(outputs));
  Reply& reply = outcome.reply;
  for (const UpdateSums& part : outcome.parts) {
    reply.set_loss(reply.loss() + part.loss());
    reply.set_action_tokens(reply.action_tokens() + part.action_tokens());
    reply.set_tokens(reply.tokens() + part.tokens());
    reply.set_computed_tokens(reply.computed_tokens() + part.computed_tokens());
  }
  reply.set_grad_norm(outcome.parts[0].grad_norm());
  reply.set_skipped(outcome.parts[0].skipped());
  reply.set_optimizer_steps(outcome.parts[0].optimizer_steps());
  reply.set_micro_batches(split.micro_batches());
  reply.set_balance(split.balance);
  if (pairs) *reply.mutable_pairs() = outcome.Pairs();
  return outcome;
}

}  // namespace quartet
