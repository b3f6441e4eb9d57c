// Tells errors that leave the ranks of a group in step from those that do not. LibTorch-free.
#pragma once

#include "absl/status/status.h"

namespace quartet {

// Marks an error that every rank of the group has heard of at a point that all of them passed, with no collective under
// way: they can go on together. The mark is lost where a Status is made anew.
void MarkAgreed(absl::Status* error);
bool IsAgreed(const absl::Status& error);

}  // namespace quartet
