// A file of rows, JSONL or Parquet, read row by row in any order. LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/files/input_file.h"
#include "core/data/record.h"
#include "core/data/row_blocks.h"

namespace quartet {

struct DataFile {
  std::string path;    // Parquet where it ends in ".parquet", else JSONL
  std::string option;  // of the configuration, whose value the path is; errors begin with it
};

// Where each row begins is known: 8 bytes a row, found by one pass over the file. Rows themselves are read when they
// are asked for. Those of Parquet, which has no place for single rows, are first written, the asked-for columns alone,
// as JSON lines into a file without a name in $TMPDIR (else /tmp), which goes with this object. Immutable; thread safe.
class RowFile {
 public:
  // At most the first `max_rows` rows (0 = all). A line is a row; blank ones at the end are not. NOT_FOUND says where
  // relative paths start; INVALID_ARGUMENT: no row, or a file of Parquet that is damaged or lacks a column that must be
  // there.
  static absl::StatusOr<std::unique_ptr<RowFile>> Open(const DataFile& file, const std::vector<RowKey>& keys,
                                                       int64_t max_rows = 0);

  int64_t rows() const { return static_cast<int64_t>(begins_.size()) - 1; }
  // Of the bytes of all rows, as they lie in the file that is indexed.
  uint64_t hash() const { return hash_; }
  // Of its rows, too, by which it can be told how much of it has changed.
  const RowBlocks& blocks() const { return blocks_; }
  const DataFile& file() const { return file_; }

  // The keys of row number `index`, counted from 0. INVALID_ARGUMENT names option, file and line (of Parquet the row,
  // counted from 1), and the reason; UNAVAILABLE where the file cannot be read any more.
  absl::StatusOr<Record> Read(int64_t index) const;
  // The status with option, file and line before its message.
  absl::Status At(int64_t index, const absl::Status& status) const;

 private:
  RowFile(DataFile file, std::vector<RowKey> keys);

  absl::Status IndexLines(int64_t max_rows);
  absl::Status WriteRows(int64_t max_rows);
  absl::StatusOr<std::string> Text(int64_t index) const;
  std::string Place(int64_t index) const;
  // The status; where its row is the first, it says what a file looks like: this one may be none of that kind.
  absl::Status WithFormat(int64_t index, const absl::Status& status) const;

  const DataFile file_;
  const std::vector<RowKey> keys_;
  const std::string source_;
  const bool is_parquet_;
  std::string columns_;  // of Parquet, for errors
  InputFile rows_file_;
  std::vector<uint64_t> begins_;  // of each row; last, where the last row ends
  uint64_t hash_ = 0;
  RowBlocks blocks_;
};

}  // namespace quartet
