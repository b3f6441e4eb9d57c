// Which rank takes which sequences of a batch, and in how many micro-batches. LibTorch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quartet {

struct BatchSplit {
  // By rank: indices into the batch, longest sequence first, so that the m-th micro-batches of all ranks, which run in
  // step, are about equally long.
  std::vector<std::vector<size_t>> items;
  // What every rank runs: ceil(most sequences of a rank / micro_batch_size). The last ones of a rank may be empty.
  uint64_t micro_batches = 0;
};

// Gives every sequence to exactly one of `ranks` ranks. No rank takes more than ceil(sequences / ranks) of them, which
// keeps the number of micro-batches at its least; within that, tokens are balanced (longest first, to the rank with
// the fewest tokens). A function of its arguments alone. `ranks` and `micro_batch_size` are at least 1.
BatchSplit SplitBatch(const std::vector<int64_t>& tokens, int ranks, int micro_batch_size);

}  // namespace quartet
