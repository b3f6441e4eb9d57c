// The rows of several files, in the order in which a run takes them. LibTorch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/order/row_order.h"
#include "core/data/record.h"
#include "core/data/row_file.h"

namespace quartet {

struct DatasetOptions {
  std::string option;  // whose value `paths` is
  std::vector<std::string> paths;
  std::vector<double> weights;  // as RowOrder's
  std::vector<RowKey> keys;
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t max_rows = 0;      // of each file, the first ones; 0 = all
  int64_t checked_rows = 0;  // of each file, the first ones; 0 = all
  bool drop_overlong = true;
  bool drop_malformed = false;
};

// The rows that were left out so far, each once: all that cannot be used of those that are checked at the start, of
// others those that were drawn.
struct LeftOut {
  int64_t overlong = 0;
  int64_t malformed = 0;
  absl::Status first_overlong, first_malformed;  // why; OK where there is none
};

// Told after each row that is checked, by how many there are; an error ends the checking.
using RowProgress = std::function<absl::Status(int64_t done, int64_t all)>;

// Rows are checked where they are opened, as far as checked_rows goes: those that cannot be used are not among the rows
// of an epoch. What is behind them is found out when it is drawn; in place of a row that cannot be used comes another
// one of its file then, drawn by position and seed. So each position has its row, whatever came before: a run goes on
// anywhere.
//
// Memory: 8 bytes a row, and a row more for each that is left out at the start, some for each that is later. One
// thread.
class Dataset {
 public:
  // Makes of a row what it is for. OUT_OF_RANGE: it is too long. INVALID_ARGUMENT: it is not well-formed. Both are left
  // out and counted, or errors, as the options say; other errors are errors.
  using Use = std::function<absl::Status(const Record&)>;

  // Opens the files and calls `check` for the first rows of each, in order. INVALID_ARGUMENT names option, file, row
  // and reason; so where no row of a file can be used. An error of `progress` is returned as it is.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(DatasetOptions options, const Use& check,
                                                       const RowProgress& progress);

  // Rows of an epoch: all that are not known to be left out.
  int64_t rows() const { return order_->rows(); }
  // Rows of all files that were not checked.
  int64_t unchecked_rows() const { return unchecked_; }
  const LeftOut& left_out() const { return left_out_; }
  // `checked`, a hash of the rows that were checked, with the files of those that were not.
  uint64_t hash(uint64_t checked) const;

  // The files, as they are now.
  struct FileState {
    DataFile file;
    uint64_t hash = 0;   // of all its rows
    RowBlocks blocks;    // likewise
    int64_t in_use = 0;  // rows of an epoch
  };
  std::vector<FileState> files() const;

  // Calls `use` for the rows at the positions [begin, begin + count) of the run, one each.
  absl::Status Take(int64_t begin, int64_t count, const Use& use);

 private:
  explicit Dataset(DatasetOptions options) : options_(std::move(options)) {}

  struct File {
    std::unique_ptr<RowFile> rows;
    std::vector<int64_t> dropped;          // when it was opened; ascending
    std::unordered_set<int64_t> unusable;  // found out when they were drawn
    int64_t size() const { return rows->rows() - static_cast<int64_t>(dropped.size()); }
    // The row that has `index` rows in use before it.
    int64_t Row(int64_t index) const;
  };

  absl::Status Check(File* file, const Use& check, const std::function<absl::Status()>& checked);
  // Whether the row is used; an error where it is none that is left out.
  absl::StatusOr<bool> TryUse(const File& file, int64_t row, const Use& use);

  const DatasetOptions options_;
  std::vector<File> files_;
  std::optional<RowOrder> order_;
  LeftOut left_out_;
  int64_t unchecked_ = 0;
  uint64_t unchecked_hash_ = 0;  // 0 where all is checked
};

}  // namespace quartet
