// One verdict for all ranks: an error of one must not leave the others waiting in the next collective.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "core/comm/process_group.h"

namespace quartet {

// A collective. OK if `mine` is OK on every rank; else, on every rank, the error of the lowest rank that has one, "rank
// <r> of <n>: " before its message (cut at 2,000 bytes; a lone rank's as it is), marked as agreed (agreed_error.h).
// `device` is the group's; of
// a dry group it is meta, and the verdict `mine`. Throws as collectives do.
absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, at::Device device);

// Runs `work`, which may take longer on one rank than a collective may take on the others: what waits for a disk.
// Collective; returns when all ranks are through with theirs, with what this rank's returned (AgreeOnStatus tells the
// others). While a rank is at it all of them meet every few seconds, so that its pace breaks no deadline and one that
// is gone is noticed; rank 0 says whom it has waited for every minute, and for `what`. `work` is run by the caller's
// thread and makes no collectives. What it throws is RESOURCE_EXHAUSTED where memory ran out, else INTERNAL. Throws as
// collectives do, after `work`.
absl::Status WithoutDeadline(ProcessGroup& group, at::Device device, const std::string& what,
                             const std::function<absl::Status()>& work);

}  // namespace quartet
