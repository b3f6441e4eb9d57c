// Where a parameter's elements come from: a folder's files, or a random generator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "core/model/parameter_layout.h"
#include "core/safetensors/reader.h"
#include "core/zero/sharded/flat_layout.h"

namespace quartet {

// Where sums over what is read go (core/weights/tensor_hash.h), of the elements as the files have them.
struct ReadHash {
  uint64_t sum = 0;
  int64_t first_position = 0;  // that the parameter's first element has
};

// Reads the elements of `piece`, and no others, into `out` (flat, of piece.count elements, any type and device). Errors
// name file and tensor: missing, other shape, unsupported type, numbers that are not finite. Adds them to `hash`, where
// it is given.
absl::Status ReadPiece(const CheckpointReader& reader, const ParameterSpec& parameter, const FlatPiece& piece,
                       const at::Tensor& out, ReadHash* hash = nullptr);

// Draws them from N(0, 1 / (hidden_size + 1)): a new scalar head. A function of seed and position in the tensor alone,
// so that every world size draws the same values.
void DrawPiece(uint64_t seed, int64_t hidden_size, const FlatPiece& piece, const at::Tensor& out);

// Draws them of a new adapter's A [r, in] as PEFT does, torch's kaiming_uniform_ with a = sqrt(5): evenly between
// -1 / sqrt(in) and 1 / sqrt(in). A function of seed, name and position alone.
void DrawFactorA(uint64_t seed, const ParameterSpec& factor, const FlatPiece& piece, const at::Tensor& out);

}  // namespace quartet
