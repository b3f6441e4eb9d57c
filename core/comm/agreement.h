// One verdict for all ranks: an error of one must not leave the others waiting in the next collective.
#pragma once

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "core/comm/process_group.h"

namespace quartet {

// A collective. OK if `mine` is OK on every rank; else, on every rank, the error of the lowest rank that has one, "rank
// <r> of <n>: " before its message (cut at 2,000 bytes), marked as agreed (agreed_error.h). `device` is the group's; of
// a dry group it is meta, and the verdict `mine`. Throws as collectives do.
absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, at::Device device);

}  // namespace quartet
