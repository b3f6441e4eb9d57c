// The leader's side of a call over all ranks: split, run, join. gRPC-free and LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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

// Every rank's RankInfo, by `method`, whose handler takes an InfoCall and answers a RankInfo as summary.
absl::StatusOr<std::vector<RankInfo>> RunInfo(RankGroup& group, const std::string& method, absl::Time deadline);

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

}  // namespace quartet
