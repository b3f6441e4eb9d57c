// The leader's side of SaveCheckpoint. gRPC-free and LibTorch-free.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time/deadline.h"
#include "core/service/ranks/group/rank_group.h"
#include "proto/common.pb.h"

namespace quartet {

// An identifier that is safe in a path: [a-z0-9_-]{1,64}.
absl::Status CheckCheckpointId(const std::string& id);

// Runs `method`, whose handler takes a SaveCall and answers a SaveSummary, over all ranks: into `name` and, where the
// request asks for it, `name`_state, in the folder of the request's checkpoint under `run_dir`/checkpoints.
// ALREADY_EXISTS names the one that is there.
absl::StatusOr<SaveCheckpointReply> RunSave(RankGroup& group, const std::string& method,
                                            const SaveCheckpointRequest& request, const std::string& run_dir,
                                            const std::string& name, const Deadline& deadline);

}  // namespace quartet
