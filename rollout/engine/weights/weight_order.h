// Weights in the order in which products read them (core/kernels/linear.h), where they can be: in the memory where they
// lie otherwise, so that no forward has to put them there.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/model/decoder/decoder.h"
#include "core/zero/sharded/sharded_model.h"

namespace quartet {

// All of a model.
struct WholeWeights {
  at::Tensor embedding, norm_D, head;
  std::vector<BlockWeights> blocks;
};

// Of `buffers`, which hold a whole group each, laid out like the weights in use; views of them.
WholeWeights ArrangeWhole(const ShardedModel& model, const std::vector<at::Tensor>& buffers);

// Of a sharded model's part, laid out like its shard: all panels that lie in it whole.
void ArrangePart(const ShardedModel& model, const std::vector<at::Tensor>& buffers);
// The parameters of a group that has been gathered from such parts, in their order. To be called once for a gather:
// panels that are cut between ranks, fewer than there are ranks, are put in order here.
std::vector<at::Tensor> ArrangeGathered(const ShardedModel& model, int group, const GatheredGroup& gathered);

}  // namespace quartet
