// Reads GGUF files, llama.cpp's format: metadata, and tensors of which some are quantised. LibTorch-free.
//
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

// The types that can be read, under their numbers in the format.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

struct GgufTensor {
  std::vector<int64_t> shape;  // row-major: the format's, the other way round
  GgufType type = GgufType::kF32;
  const char* data = nullptr;  // of the file

  int64_t numel() const;
};

// Immutable, thread safe. Nothing of a file is believed: errors, INVALID_ARGUMENT, name the file and what is wrong.
class GgufFile {
 public:
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }

  // Metadata. INVALID_ARGUMENT names a key that is missing or has another type.
  absl::StatusOr<int64_t> Integer(const std::string& key) const;
  absl::StatusOr<double> Real(const std::string& key) const;
  absl::StatusOr<std::string> Text(const std::string& key) const;
  absl::StatusOr<std::vector<std::string>> Texts(const std::string& key) const;
  absl::StatusOr<std::vector<int64_t>> Integers(const std::string& key) const;
  bool Has(const std::string& key) const { return values_.contains(key); }

  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }

 private:
  using Value =
      std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;
  class Cursor;

  explicit GgufFile(std::string path) : path_(std::move(path)) {}
  absl::Status Map();
  absl::Status Parse();
  absl::Status ReadValue(Cursor& cursor, const std::string& key);
  absl::Status ReadTensor(Cursor& cursor, const std::string& name, GgufTensor* tensor, uint64_t* offset);
  absl::Status Error(const std::string& what) const;
  template <typename Wanted>
  absl::StatusOr<Wanted> Get(const std::string& key, const char* wanted) const;

  const std::string path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
  std::map<std::string, Value> values_;
  std::map<std::string, GgufTensor> tensors_;
};

// All elements of `tensor` as fp32, as ggml computes them: a scale times a number, plus a least value.
std::vector<float> Dequantise(const GgufTensor& tensor);

}  // namespace quartet
