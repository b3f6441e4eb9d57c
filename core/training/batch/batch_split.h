// Which rank takes which sequences of a batch, and in which micro-batches. LibTorch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quartet {

// What one rank's micro-batch may hold; 0: no such limit. At least one of the two is set.
struct MicroBatchLimit {
  int64_t sequences = 0;
  int64_t tokens = 0;  // at least the longest sequence
};

// A sequence, or several that stay together.
struct BatchItem {
  int64_t tokens = 0;
  double cost = 0;  // what it takes to compute, in any unit; not negative
  int64_t sequences = 1;
};

struct BatchSplit {
  // By rank: indices into the batch, one micro-batch behind the other; within a micro-batch the longest first.
  std::vector<std::vector<size_t>> items;
  // By rank: how many of its items each micro-batch takes. Equally many entries on every rank. Fewer than `ranks`
  // entries are 0 (a rank without work for the others' last micro-batch), unless the batch is empty.
  std::vector<std::vector<uint32_t>> micro_batch_sizes;
  // The share of the ranks' time that is not spent waiting for the heaviest rank, where all ranks run their m-th
  // micro-batches in step: cost of the batch / (ranks x sum over m of the heaviest m-th micro-batch). In (0, 1].
  double balance = 1;
  // What the ranks take, then: that sum over m.
  double paced_cost = 0;

  uint64_t micro_batches() const { return micro_batch_sizes.front().size(); }
};

// Gives every item, of no more tokens and sequences than the limit, to exactly one micro-batch of one of `ranks` (at
// least 1) ranks.
//
// All micro-batches keep to `limit`. How many there are comes first, since each costs a sharded model a round of
// gathering: best-fit decreasing bin packing by tokens, which takes at most 11/9 of the least number, asymptotically
// (Johnson et al. 1974), rounded up to the same number on every rank. Over these, cost is balanced: longest processing
// time first, then exchanges between the heaviest and the lightest micro-batch. They are dealt to the ranks by weight,
// so that the m-th ones of all ranks are neighbours; the heaviest come first.
//
// A function of its arguments alone.
BatchSplit SplitBatch(const std::vector<BatchItem>& batch, int ranks, const MicroBatchLimit& limit);

}  // namespace quartet
