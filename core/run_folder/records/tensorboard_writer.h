// Writes scalars as TensorBoard reads them.
//
// A file is a sequence of records; a record is
//   uint64 length | uint32 masked CRC of the length | bytes | uint32 masked CRC of the bytes
// little-endian; the CRC is CRC-32C, masked as ((crc >> 15 | crc << 17) + 0xa282ead8) modulo 2^32 (TFRecord).
// The bytes are a TensorBoardEvent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/run_folder/records/append_file.h"
#include "core/run_folder/records/metrics.h"

namespace quartet {

// CRC-32C (Castagnoli), as in RFC 3720.
uint32_t Crc32c(std::string_view bytes);

// One record, framed.
std::string FrameTensorBoardRecord(std::string_view bytes);

// An event file in two. Each is one by itself, or empty where it would have no scalars.
struct TensorBoardParts {
  std::string before;  // what there is of the steps below `steps`
  std::string later;   // what follows, with anything that is broken
};
TensorBoardParts SplitTensorBoardFile(std::string_view file, int64_t steps);

// One thread.
class TensorBoardWriter {
 public:
  // Creates an event file in `folder`, which exists.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Create(const std::string& folder, absl::Time now);

  absl::Status Write(int64_t step, absl::Time now, const Metrics& metrics);

  const std::string& path() const { return file_->path(); }

 private:
  explicit TensorBoardWriter(std::unique_ptr<AppendFile> file) : file_(std::move(file)) {}
  std::unique_ptr<AppendFile> file_;
};

}  // namespace quartet
