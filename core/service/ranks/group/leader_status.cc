#include "core/service/ranks/group/leader_status.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/base/time/loading.h"
#include "core/service/rpc/service_version.h"

namespace quartet {

absl::Status LeaderStatus::CheckReady(const std::string& call) const {
  if (!group_.is_leader()) {
    const std::string endpoint = group_.endpoints()[0];
    const std::string leader = endpoint.empty() ? "" : absl::StrCat(" at ", endpoint);
    return absl::FailedPreconditionError(
        absl::StrCat(call, " is answered by the leader, rank 0", leader, "; this is rank ", group_.rank()));
  }
  return loaded_ ? absl::OkStatus() : StillLoading();
}

absl::Status LeaderStatus::StillLoading() const { return quartet::StillLoading(still_loading_); }

ServiceInfo LeaderStatus::Describe(std::vector<RankInfo> ranks, int64_t max_model_len,
                                   const std::map<std::string, Vocabulary>& vocabularies) const {
  ServiceInfo info;
  info.set_service(service_);
  SayVersion(&info);
  info.set_max_model_len(static_cast<int32_t>(max_model_len));
  for (const auto& [role, vocabulary] : vocabularies) {
    (*info.mutable_vocab_size())[role] = static_cast<int32_t>(vocabulary.rows);
    (*info.mutable_tokenizer_vocab_size())[role] = static_cast<int32_t>(vocabulary.tokens);
  }
  info.mutable_configuration()->insert(configuration_.begin(), configuration_.end());
  for (RankInfo& rank : ranks) *info.add_ranks() = std::move(rank);
  return info;
}

}  // namespace quartet
