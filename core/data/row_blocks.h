// Hashes of the rows of a file, few enough to be kept, by which two states of it are compared. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quartet {

// Of the bytes of one row, whatever pieces they come in; the ends of its line do not count.
class RowHash {
 public:
  void Add(std::string_view bytes);
  // The hash of what was added; the next row begins.
  uint64_t Take();

 private:
  std::string piece_;  // what is not hashed yet
  uint64_t hash_ = 0;
};

// Of neighbours, in at most kMost blocks of equally many rows (the last may have fewer), so that the blocks that differ
// tell where a file is another.
class RowBlocks {
 public:
  static constexpr size_t kMost = 1024;

  // The next row.
  void Add(uint64_t row_hash);

  int64_t rows() const { return rows_; }
  const std::vector<uint64_t>& hashes() const { return hashes_; }

  // The rows of each block where there are so many in all.
  static int64_t RowsOfABlock(int64_t rows);

 private:
  int64_t rows_ = 0;
  int64_t rows_of_a_block_ = 1;
  std::vector<uint64_t> hashes_;
};

}  // namespace quartet
