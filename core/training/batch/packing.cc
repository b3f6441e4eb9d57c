#include "core/training/batch/packing.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/kernels/row_padding.h"
#include "core/rl/options/token_arrays.h"
#include "core/training/batch/sequence_tree.h"

namespace quartet {
namespace {

template <typename T>
at::Tensor ToTensor(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(type));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
  return device.is_cpu() ? tensor : tensor.to(device);
}

}  // namespace

PackedBatch Pack(const std::vector<const TokenSequence*>& sequences, const ShardedModel& model) {
  const ShardedModelOptions& options = model.options();
  PackedBatch batch = Pack(sequences, options.device,
                           SharingOn(ComputeDevice(options.device) == at::kCPU, options.compute_dtype == at::kBFloat16,
                                     model.config().head_dim));
  batch.targets.vocabulary = model.vocabulary();
  return batch;
}

PackedBatch Pack(const std::vector<const TokenSequence*>& sequences, at::Device device, Sharing sharing) {
  PackedBatch batch;
  std::vector<int64_t> first_action;  // of each sequence, among all
  for (const TokenSequence* sequence : sequences) {
    first_action.push_back(batch.num_actions);
    batch.actions.push_back(CountActions(*sequence));
    batch.num_actions += batch.actions.back();
    batch.num_tokens += sequence->ids_size();
  }
  std::vector<int64_t> last_rows(sequences.size());
  PackedSequences& packed = batch.sequences;
  packed.cu_seqlens.push_back(0);
  std::vector<int64_t> ids, action_rows(batch.num_actions), action_ids(batch.num_actions);
  std::vector<int64_t> rows;  // of each token of a sequence
  for (const PlaceInTree& place : PlacesInTree(sequences, sharing != Sharing::kNone)) {
    const TokenSequence& sequence = *sequences[place.index];
    rows.resize(place.shared);
    for (int t = static_cast<int>(place.shared); t < sequence.ids_size(); ++t) {
      rows.push_back(static_cast<int64_t>(ids.size()));
      ids.push_back(sequence.ids(t));
    }
    int64_t action = first_action[place.index];
    for (int t = 0; t < sequence.ids_size(); ++t) {
      if (!sequence.action_mask(t)) continue;
      action_rows[action] = rows[t - 1];
      action_ids[action++] = sequence.ids(t);
    }
    last_rows[place.index] = rows.back();
    packed.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
    packed.shared.push_back(place.shared);
  }
  const auto rows_used = static_cast<int64_t>(ids.size());
  batch.num_computed = rows_used;
  if (const int64_t padded = PaddedRows(rows_used); padded > rows_used) {
    ids.resize(padded, 0);
    packed.cu_seqlens.push_back(padded);
    packed.shared.push_back(0);
  }
  if (rows_used == batch.num_tokens) packed.shared.clear();
  packed.ids_T = ToTensor(ids, at::kLong, device);
  batch.targets = MakeHeadTargets(action_rows, action_ids, device);
  batch.last_rows_S = ToTensor(last_rows, at::kLong, device);
  return batch;
}

at::Tensor Concatenate(const std::vector<const TrainingSequence*>& sequences, std::string_view array,
                       at::Device device) {
  std::vector<float> values;
  for (const TrainingSequence* sequence : sequences) {
    const TokenArray* found = FindArray(*sequence, array);
    QUARTET_CHECK(found != nullptr) << "a sequence without " << array;
    values.insert(values.end(), found->values().begin(), found->values().end());
  }
  return ToTensor(values, at::kFloat, device);
}

}  // namespace quartet
