// Reads safetensors files by byte range. LibTorch-free.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace quartet {

enum class Dtype { kF32, kF16, kBF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };
int64_t DtypeSize(Dtype dtype);
std::string_view DtypeName(Dtype dtype);  // "F32", "BF16", ...

// "[2, 3]"
std::string ShapeText(absl::Span<const int64_t> shape);
// How many elements a tensor of the shape has.
int64_t NumelOf(absl::Span<const int64_t> shape);

struct TensorInfo {
  Dtype dtype;
  std::vector<int64_t> shape;
  int file = 0;         // index into CheckpointReader::files
  uint64_t offset = 0;  // byte in the file
  uint64_t bytes = 0;
  int64_t numel() const;
};

// All tensors of a Hugging Face folder: model.safetensors, or the files of model.safetensors.index.json. Checks
// everything that a hostile file could say (header size and depth, overlapping or open ranges, overflow, length against
// shape and type) before any tensor is read; errors name the file and the tensor. Thread safe after Open.
class CheckpointReader {
 public:
  // NOT_FOUND says which file was looked for and where; INVALID_ARGUMENT what is wrong with one. Where both
  // model.safetensors and the index are there, the former is read, as transformers does.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& folder);
  // The tensors of one safetensors file, checked in the same way.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenFile(const std::string& path);
  ~CheckpointReader();

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::vector<std::string>& files() const { return files_; }

  // Reads elements [begin, begin + count) of a tensor, as stored, into `out` (count * DtypeSize bytes). NOT_FOUND,
  // OUT_OF_RANGE; DATA_LOSS where the file has become shorter since Open.
  absl::Status ReadRange(const std::string& tensor, int64_t begin, int64_t count, void* out) const;

  // HashBytes (core/base/hash.h) of the header of files()[file], without the header's length.
  uint64_t header_hash(int file) const;

  // Bytes that ReadRange has read so far.
  int64_t bytes_read() const;

 private:
  CheckpointReader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::map<std::string, TensorInfo> tensors_;
  std::vector<std::string> files_;
};

}  // namespace quartet
