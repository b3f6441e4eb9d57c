// Whether weights are others, told for the price of a few reads of each tensor. LibTorch-free.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/safetensors/reader.h"

namespace quartet {

// Of names, types, shapes and some elements of each tensor, whichever files they are in: the same on every machine and
// in every release. Two trainings of a model differ in it; a change of a few elements may not. Errors as ReadRange's.
absl::StatusOr<uint64_t> HashSamples(const CheckpointReader& reader);

}  // namespace quartet
