// Writes safetensors files in a stream. LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/safetensors/reader.h"

namespace quartet {

// Declares all tensors first, then takes their bytes in any order and any pieces; Close checks that every byte was
// written, syncs the file and only then gives it its name: until then it is `path`.partial, which goes if the writer
// does. No byte may be written twice. An error (a full disk, say, RESOURCE_EXHAUSTED, which Create finds by reserving
// the whole file where the file system can) names the file and what was being written. Not thread safe.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    Dtype dtype;
    std::vector<int64_t> shape;
  };
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path, std::vector<Entry> entries);
  ~SafetensorsWriter();

  // `bytes` of tensor `entry` (index), from its byte `offset`.
  absl::Status Write(int entry, uint64_t offset, const void* data, uint64_t bytes);
  absl::Status Close();
  uint64_t file_bytes() const;
  // As CheckpointReader::header_hash.
  uint64_t header_hash() const;

 private:
  struct Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet
