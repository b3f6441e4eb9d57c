// Rows of a Parquet file as JSON. Arrow, which reads them, is known to parquet.cc alone. LibTorch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

// One thread.
class ParquetReader {
 public:
  virtual ~ParquetReader() = default;

  // NOT_FOUND, PERMISSION_DENIED or UNAVAILABLE where the file cannot be opened, INVALID_ARGUMENT where it is no
  // Parquet; both name the path.
  static absl::StatusOr<std::unique_ptr<ParquetReader>> Open(const std::string& path);

  virtual int64_t rows() const = 0;
  // Names of the columns; what is nested in them is not listed.
  virtual const std::vector<std::string>& columns() const = 0;

  // Calls `take` with each of the first `count` rows, in order, as a JSON object of the columns `names`, on one line:
  // lists and structs are arrays and objects, maps objects where their keys are texts, else arrays of {"key", "value"};
  // dates, times and decimals are texts as Arrow prints them; NaN and infinities, which JSON lacks, are null. Texts are
  // not checked to be UTF-8. Memory is bounded by some hundred rows and a page of each column, and not by the file.
  // INVALID_ARGUMENT names the path and the column of a type that has no such form, or says where the file is damaged;
  // an error of `take` ends it.
  virtual absl::Status Read(const std::vector<std::string>& names, int64_t count,
                            const std::function<absl::Status(std::string_view row)>& take) = 0;
};

}  // namespace quartet
