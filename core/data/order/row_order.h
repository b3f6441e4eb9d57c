// Which row of which file comes when: mixtures, shuffling, epochs. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

namespace quartet {

struct RowPlace {
  int64_t file = 0;
  int64_t row = 0;  // of the file's rows, counted from 0
  bool operator==(const RowPlace&) const = default;
};

// A function of seed and position alone, so that a run goes on anywhere. One thread, for a cache.
//
// Without weights all rows of all files are one list, gone through once an epoch. With weights each position is drawn
// from file f with the probability weights[f] / sum of weights, independently; each file is gone through by itself, in
// epochs of its own. Shuffled, each epoch has another order; else it is that of the files.
class RowOrder {
 public:
  // rows[f] > 0; `weights` is empty or has a number above 0 a file.
  RowOrder(uint64_t seed, bool shuffle, std::vector<int64_t> rows, std::vector<double> weights);

  // All rows of all files.
  int64_t rows() const { return total_; }
  // Constant time, but with weights for positions far behind the last one, or before it: linear in how far, or from 0.
  RowPlace At(int64_t position);
  // What is taken where the row at `position` cannot be used: row number `attempt` (from 1) of draws, with replacement,
  // from the rows of the same file.
  RowPlace InPlaceOf(int64_t position, int64_t attempt);

 private:
  // Place number n of list number `list`, of `rows` rows.
  int64_t Ordered(uint64_t list, int64_t n, int64_t rows) const;
  int64_t DrawFile(int64_t position) const;

  const uint64_t seed_;
  const bool shuffle_;
  const std::vector<int64_t> rows_;
  int64_t total_ = 0;
  std::vector<double> ends_;  // with weights: where each file's part of [0, 1) ends
  // Draws of each file before position counted_.
  int64_t counted_ = 0;
  std::vector<int64_t> draws_;
};

}  // namespace quartet
