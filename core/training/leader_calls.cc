#include "core/training/leader_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/service/protocol_version.h"

namespace quartet {

std::vector<RankInput> MakeInputs(const std::string& header, int ranks) {
  return std::vector<RankInput>(ranks, RankInput{.header = header, .items = {}});
}

absl::StatusOr<std::vector<TokenValues>> RunForward(RankGroup& group, const std::string& method, ForwardCall call,
                                                    const std::vector<const TokenSequence*>& sequences,
                                                    int micro_batch_size, absl::Time deadline) {
  if (sequences.empty()) return std::vector<TokenValues>();
  std::vector<int64_t> tokens;
  tokens.reserve(sequences.size());
  for (const TokenSequence* sequence : sequences) tokens.push_back(sequence->ids_size());
  const BatchSplit split = SplitBatch(tokens, group.world_size(), micro_batch_size);
  call.set_micro_batches(split.micro_batches);

  const std::string header = call.SerializeAsString();
  std::vector<RankInput> inputs(split.items.size());
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    inputs[rank].header = header;
    for (size_t item : split.items[rank]) inputs[rank].items.push_back(sequences[item]->SerializeAsString());
  }
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankOutput> outputs, group.Run(method, std::move(inputs), deadline));

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

absl::StatusOr<ServiceInfo> DescribeService(RankGroup& group, const std::string& method, const std::string& service,
                                            int64_t max_len, absl::Time deadline) {
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankOutput> outputs,
                           group.Run(method, MakeInputs(InfoCall().SerializeAsString(), group.world_size()), deadline));
  QUARTET_ASSIGN_OR_RETURN(std::vector<RankInfo> ranks, ParseSummaries<RankInfo>(outputs));
  ServiceInfo info;
  info.set_service(service);
  info.set_protocol_version(kProtocolVersion);
  info.set_max_model_len(static_cast<int32_t>(max_len));
  for (RankInfo& rank : ranks) *info.add_ranks() = std::move(rank);
  return info;
}

}  // namespace quartet
