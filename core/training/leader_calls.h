// The leader's side of a call over all ranks: split, run, join. gRPC-free and LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/service/rank_group.h"
#include "core/training/batch_split.h"
#include "core/training/rank_calls.pb.h"
#include "proto/common.pb.h"
#include "proto/experience.pb.h"

namespace quartet {

// Runs `method`, whose handler takes a ForwardCall and TokenSequences and gives one TokenValues for each, over all
// ranks. `call.micro_batches` is filled in. Returns the replies in the order of `sequences`. Without sequences nothing
// is run.
absl::StatusOr<std::vector<TokenValues>> RunForward(RankGroup& group, const std::string& method, ForwardCall call,
                                                    const std::vector<const TokenSequence*>& sequences,
                                                    int micro_batch_size, absl::Time deadline);

// What a service says of itself to every client, with every rank's RankInfo by `method`, whose handler takes an
// InfoCall and answers a RankInfo as summary. `max_len` in tokens.
absl::StatusOr<ServiceInfo> DescribeService(RankGroup& group, const std::string& method, const std::string& service,
                                            int64_t max_len, absl::Time deadline);

// The same header for every rank, and to each the items that `split` gives it.
template <typename Item>
std::vector<RankInput> MakeInputs(const std::string& header, const std::vector<Item>& items, const BatchSplit& split) {
  std::vector<RankInput> inputs(split.items.size());
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    inputs[rank].header = header;
    for (size_t item : split.items[rank]) inputs[rank].items.push_back(items[item].SerializeAsString());
  }
  return inputs;
}

// The same header for every rank, no items.
std::vector<RankInput> MakeInputs(const std::string& header, int ranks);

// Summaries of all ranks, parsed.
template <typename Summary>
absl::StatusOr<std::vector<Summary>> ParseSummaries(const std::vector<RankOutput>& outputs) {
  std::vector<Summary> summaries(outputs.size());
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    if (!summaries[rank].ParseFromString(outputs[rank].summary)) {
      return absl::InternalError("unreadable summary of rank " + std::to_string(rank));
    }
  }
  return summaries;
}

// What an optimizer step over all ranks came to.
template <typename Reply, typename Sums>
struct UpdateOutcome {
  Reply reply;              // what every trainer's reply has is filled in
  std::vector<Sums> parts;  // by rank

  // Mean over all action tokens, of which there is at least one (CheckTrainingSequences).
  double Mean(double (Sums::*sum)() const) const {
    double total = 0;
    for (const Sums& part : parts) total += (part.*sum)();
    return total / static_cast<double>(reply.action_tokens());
  }
};

// Runs `method`, whose handler takes a Call and TrainingSequences and answers Sums, over all ranks.
// `call.micro_batches` is filled in.
template <typename Reply, typename Sums, typename Call>
absl::StatusOr<UpdateOutcome<Reply, Sums>> RunUpdate(RankGroup& group, const std::string& method, Call call,
                                                     const std::vector<TrainingSequence>& sequences,
                                                     int micro_batch_size, absl::Time deadline) {
  std::vector<int64_t> tokens;
  tokens.reserve(sequences.size());
  for (const TrainingSequence& sequence : sequences) tokens.push_back(sequence.tokens().ids_size());
  const BatchSplit split = SplitBatch(tokens, group.world_size(), micro_batch_size);
  call.set_micro_batches(split.micro_batches);
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankOutput> outputs,
                           group.Run(method, MakeInputs(call.SerializeAsString(), sequences, split), deadline));
  UpdateOutcome<Reply, Sums> outcome;
  QUARTET_ASSIGN_OR_RETURN(outcome.parts, ParseSummaries<Sums>(outputs));
  Reply& reply = outcome.reply;
  for (const Sums& part : outcome.parts) {
    reply.set_loss(reply.loss() + part.loss());
    reply.set_action_tokens(reply.action_tokens() + part.action_tokens());
    reply.set_tokens(reply.tokens() + part.tokens());
  }
  reply.set_grad_norm(outcome.parts[0].grad_norm());
  reply.set_skipped(outcome.parts[0].skipped());
  reply.set_optimizer_steps(outcome.parts[0].optimizer_steps());
  reply.set_micro_batches(split.micro_batches);
  return outcome;
}

}  // namespace quartet
