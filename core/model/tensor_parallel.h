// One rank's share of a decoder that is divided over ranks inside its matrices: heads, feed-forward and vocabulary.
// LibTorch-free.
//
// A share is a smaller decoder: H / N heads, K / N key/value heads, F / N of the feed-forward. Where there are fewer
// key/value heads than ranks, each is on N / K neighbours, which are those whose queries read it. What it computes
// behind its output and down projections is one of N partial sums. Query, key, value, gate and up projections are
// sliced by rows, with their biases; output and down projections by columns; embedding and vocabulary head by rows.
// Norms, and the biases that follow a sum, are whole on every rank.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"

namespace quartet {

struct TensorParallel {
  int rank = 0;
  int size = 1;  // 1: the whole model
};

// INVALID_ARGUMENT where the model cannot be divided by `size`: names config.json's field, its value and what is
// allowed.
absl::Status CheckTensorParallel(const ModelConfig& config, int size);

// The rows [begin, begin + count) of embedding and vocabulary head that a rank has: at least one, the ranks' numbers
// differing by 16 at most.
struct VocabularyRows {
  int64_t begin;
  int64_t count;
};
VocabularyRows VocabularyRowsOf(const ModelConfig& config, TensorParallel place);

// What follows is for models and sizes for which CheckTensorParallel holds.

// What a rank's blocks are computed with. vocab_size is the whole model's.
ModelConfig ShareOfConfig(const ModelConfig& config, int size);
// The parameters of a rank, those that are slices marked as such.
ParameterLayout ShareOfLayout(const ModelConfig& config, HeadKind head, TensorParallel place);

}  // namespace quartet
