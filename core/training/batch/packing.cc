#include "core/training/batch/packing.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/kernels/row_padding.h"

namespace quartet {
namespace {

template <typename T>
at::Tensor ToTensor(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(type));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
  return device.is_cpu() ? tensor : tensor.to(device);
}

}  // namespace

PackedBatch Pack(const std::vector<const TokenSequence*>& sequences, at::Device device) {
  PackedBatch batch;
  std::vector<int64_t> ids, rows, targets;
  batch.sequences.starts.push_back(0);
  for (const TokenSequence* sequence : sequences) {
    int64_t actions = 0;
    for (int t = 0; t < sequence->ids_size(); ++t) {
      if (sequence->action_mask(t)) {
        rows.push_back(static_cast<int64_t>(ids.size()) - 1);
        targets.push_back(sequence->ids(t));
        ++actions;
      }
      ids.push_back(sequence->ids(t));
    }
    batch.sequences.starts.push_back(static_cast<int64_t>(ids.size()));
    batch.actions.push_back(actions);
  }
  batch.num_tokens = static_cast<int64_t>(ids.size());
  if (const int64_t rows = PaddedRows(batch.num_tokens); rows > batch.num_tokens) {
    ids.resize(rows, 0);
    batch.sequences.starts.push_back(rows);
  }
  batch.num_actions = static_cast<int64_t>(rows.size());
  batch.sequences.ids_T = ToTensor(ids, at::kLong, device);
  batch.action_rows_A = ToTensor(rows, at::kLong, device);
  batch.action_ids_A = ToTensor(targets, at::kLong, device);
  return batch;
}

at::Tensor Concatenate(const std::vector<const TrainingSequence*>& sequences, ActionField field, at::Device device) {
  std::vector<float> values;
  for (const TrainingSequence* sequence : sequences) {
    const google::protobuf::RepeatedField<float>& array = (sequence->*field)();
    values.insert(values.end(), array.begin(), array.end());
  }
  return ToTensor(values, at::kFloat, device);
}

}  // namespace quartet
