// Sequences that begin alike. LibTorch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/training/batch/batch_split.h"
#include "core/training/batch/sequence_cost.h"
#include "proto/experience.pb.h"

namespace quartet {

struct PlaceInTree {
  size_t index = 0;    // of the sequence
  int64_t shared = 0;  // its first tokens that are those of the place before
};

// The sequences in the order of their ids (equal ones in their own), in which what any two share is shared by all
// between them. Without `share`, in their own order, and nothing is shared.
std::vector<PlaceInTree> PlacesInTree(const std::vector<const TokenSequence*>& sequences, bool share);

// SplitBatch of `sequences`, where what sequences of one micro-batch share is computed, and counted, as cost.sharing
// says: where that is once, those that begin alike stay together as far as the limit and even work for the ranks allow.
// Each sequence has at most limit.tokens tokens.
BatchSplit SplitTree(const std::vector<const TokenSequence*>& sequences, int ranks, const MicroBatchLimit& limit,
                     const SequenceCost& cost);

// What the sequences are together, in one micro-batch.
BatchItem TogetherOf(const std::vector<const TokenSequence*>& sequences, const SequenceCost& cost);

}  // namespace quartet
