#include "core/zero/sharded/parameter_reader.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/hash.h"
#include "core/base/splitmix64.h"
#include "core/base/status_macros.h"
#include "core/weights/tensor_hash.h"

namespace quartet {
namespace {

// Elements taken from a file at a time: what a rank holds beside its shard while it loads.
constexpr int64_t kReadElements = 1 << 20;

absl::StatusOr<at::ScalarType> ScalarTypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kF16:
      return at::kHalf;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("type ", std::string(DtypeName(dtype)), " cannot be a parameter; allowed: F32, BF16, F16"));
  }
}

}  // namespace

absl::Status ReadPiece(const CheckpointReader& reader, const ParameterSpec& parameter, const FlatPiece& piece,
                       const at::Tensor& out, ReadHash* hash) {
  auto found = reader.tensors().find(parameter.name);
  const std::string files = absl::StrJoin(reader.files(), ", ");
  if (found == reader.tensors().end()) {
    return absl::NotFoundError(absl::StrCat(files, ": tensor ", parameter.name, " is missing"));
  }
  const TensorInfo& info = found->second;
  const std::string where = absl::StrCat(reader.files()[info.file], ": tensor ", parameter.name);
  if (info.shape != parameter.stored_shape()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " has shape ", ShapeText(info.shape), ", the model needs ",
                                                   ShapeText(parameter.stored_shape())));
  }
  QUARTET_ASSIGN_OR_RETURN(const at::ScalarType dtype, Prefixed(where, ScalarTypeOf(info.dtype)));
  const StridedRange stored = parameter.stored_range();
  const int64_t size = DtypeSize(info.dtype);
  std::vector<char> bytes(std::min(piece.count, kReadElements) * size);
  for (int64_t done = 0; done < piece.count;) {
    const StridedRange part = NextPart(stored, piece.begin + done, std::min(piece.count - done, kReadElements));
    for (int64_t row = 0; row < part.rows; ++row) {
      const int64_t begin = part.begin + row * part.stride;
      char* const data = bytes.data() + row * part.count * size;
      QUARTET_RETURN_IF_ERROR(reader.ReadRange(parameter.name, begin, part.count, data));
      if (hash != nullptr) hash->sum += HashElements(data, info.dtype, hash->first_position + begin, part.count);
    }
    const at::Tensor values = at::from_blob(bytes.data(), {part.numel()}, at::TensorOptions(dtype));
    // One that is not makes the sum so.
    if (!std::isfinite(at::sum(values, at::kDouble).item<double>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " has numbers that are not finite (NaN or infinity): no model computes with them"));
    }
    out.narrow(0, done, part.numel()).copy_(values);
    done += part.numel();
  }
  return absl::OkStatus();
}

namespace {

// Draws element `position` from N(0, 1) by Box and Muller's transform: a function of its arguments alone, so that every
// world size draws the same values.
double NormalAt(uint64_t seed, int64_t position) {
  const uint64_t key = SplitMix(seed) ^ (2 * static_cast<uint64_t>(position));
  const double u = (static_cast<double>(SplitMix(key) >> 11) + 1) * 0x1p-53;  // (0, 1]
  const double v = static_cast<double>(SplitMix(key ^ 1) >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace

void DrawPiece(uint64_t seed, int64_t hidden_size, const FlatPiece& piece, const at::Tensor& out) {
  std::vector<float> values(piece.count);
  const double deviation = 1 / std::sqrt(static_cast<double>(hidden_size + 1));
  for (int64_t i = 0; i < piece.count; ++i) {
    values[i] = static_cast<float>(deviation * NormalAt(seed, piece.begin + i));
  }
  out.copy_(at::from_blob(values.data(), {piece.count}, at::TensorOptions(at::kFloat)));
}

void DrawFactorA(uint64_t seed, const ParameterSpec& factor, const FlatPiece& piece, const at::Tensor& out) {
  std::vector<float> values(piece.count);
  const double bound = 1 / std::sqrt(static_cast<double>(factor.stored_shape().back()));
  const uint64_t key = HashBytes(factor.name, SplitMix(seed));
  for (int64_t i = 0; i < piece.count; ++i) {
    const double u =
        static_cast<double>(SplitMix(key ^ static_cast<uint64_t>(piece.begin + i)) >> 11) * 0x1p-53;  // [0, 1)
    values[i] = static_cast<float>(bound * (2 * u - 1));
  }
  out.copy_(at::from_blob(values.data(), {piece.count}, at::TensorOptions(at::kFloat)));
}

}  // namespace quartet
