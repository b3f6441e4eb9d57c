// The gradient of a sharded model: of each group this rank's part in fp32, summed over micro-batches and ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/memory/host_copy.h"
#include "core/zero/sharded/sharded_model_impl.h"

namespace quartet {

// For each group of a micro-batch: Add (and AddRows) as often as need be, then StartReduceScatter. After the last group
// of a micro-batch WaitReduceScatter, after the last micro-batch FinishSync; then `parts` is the gradient. At most one
// reduce-scatter is under way.
class ShardedGradient {
 public:
  // `model` must outlive this. With `no_sync` micro-batches are added up whole on every rank, and reduced by
  // FinishSync. `released`: it begins as Release leaves it.
  ShardedGradient(ShardedModel::Impl* model, bool no_sync, bool released);
  // After an error: waits for what is under way, whatever becomes of it.
  ~ShardedGradient();

  // Adds what there is: gradients by parameter of the group, undefined ones are zero.
  void Add(int group, const std::vector<at::Tensor>& gradients);
  // Adds rows_TD[t] to row ids_T[t] of one parameter.
  void AddRows(int group, int parameter, const at::Tensor& ids_T, const at::Tensor& rows_TD);
  void StartReduceScatter(int group);
  void WaitReduceScatter();
  void FinishSync();

  // Of the whole gradient after FinishSync, the same bits on every rank. Collective.
  double Norm();

  // To zero; drops what has been added and not reduced.
  void Clear();

  // Of a gradient that is clear: gives its memory back, and takes it again. In between nothing else is called.
  void Release();
  void Allocate();

  // This rank's parts, laid out as the model's shards are, by group.
  const std::vector<at::Tensor>& parts() const { return parts_; }

 private:
  bool adds_up_whole() const { return !whole_.empty(); }
  void Reduce(int group, at::Tensor whole);
  void WaitHostCopy();
  void AllReduce(ProcessGroup& ranks, const at::Tensor& part);

  ShardedModel::Impl* const model_;
  const bool no_sync_;
  std::vector<at::Tensor> parts_;  // empty while its memory is given back
  // Where groups are added up whole on this rank's device: the sums; `parts_` themselves where those are whole.
  std::vector<at::Tensor> whole_;
  // The groups' gradients of this micro-batch that are still added to.
  std::vector<at::Tensor> open_;

  // The reduce-scatter under way.
  struct Reduction {
    int group;
    at::Tensor input, output;
    std::unique_ptr<CollectiveWork> work;
  };
  std::optional<Reduction> reduction_;

  // A reduced part on its way to host memory, where its sum is.
  struct HostSum {
    int group;
    at::Tensor device, host;
    HostCopy copy;
  };
  std::optional<HostSum> host_sum_;
  HostCopyStream to_host_;
};

}  // namespace quartet
