#include "core/training/calls/checkpoint_calls.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/training/engine/rank_calls.pb.h"

namespace quartet {

absl::Status CheckCheckpointId(const std::string& id) {
  const bool allowed = !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (allowed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("checkpoint_id is \"", absl::CEscape(id), "\"; allowed is [a-z0-9_-]{1,64}"));
}

absl::StatusOr<SaveCheckpointReply> RunSave(RankGroup& group, const std::string& method,
                                            const SaveCheckpointRequest& request, const std::string& run_dir,
                                            const std::string& name, const Deadline& deadline) {
  QUARTET_RETURN_IF_ERROR(CheckCheckpointId(request.checkpoint_id()));
  const std::string root = std::filesystem::path(run_dir + "/checkpoints/").lexically_normal().string();
  SaveCheckpointReply reply;
  SaveCall call;
  reply.set_folder(absl::StrCat(request.checkpoint_id(), "/", name));
  call.set_folder(root + reply.folder());
  if (request.save_optimizer()) {
    reply.set_state_folder(reply.folder() + "_state");
    call.set_state_folder(root + reply.state_folder());
  }
  for (const std::string& folder : {call.folder(), call.state_folder()}) {
    std::error_code error;
    if (!folder.empty() && std::filesystem::exists(folder, error)) {
      return absl::AlreadyExistsError(
          absl::StrCat("checkpoint_id \"", request.checkpoint_id(), "\": ", folder, " is there already"));
    }
  }
  QUARTET_RETURN_IF_ERROR(MakeDirs(std::filesystem::path(call.folder()).parent_path()));
  QUARTET_ASSIGN_OR_RETURN(const std::vector<SaveSummary> parts, RunOnAll<SaveSummary>(group, method, call, deadline));
  reply.set_bytes(parts[0].bytes());
  reply.set_state_hash(parts[0].state_hash());
  return reply;
}

}  // namespace quartet
