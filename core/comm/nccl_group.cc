#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>

#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "absl/strings/str_cat.h"
#include "core/comm/backends.h"
#include "core/comm/store_adapter.h"

namespace quartet {
namespace {

class NcclWork : public CollectiveWork {
 public:
  NcclWork(c10::intrusive_ptr<c10d::Work> work, std::string what) : work_(std::move(work)), what_(std::move(what)) {}

  // Orders the caller's stream behind the collective. A peer that is lost is noticed by the group's watchdog.
  void Wait() override {
    try {
      work_->wait();
    } catch (const std::exception& error) {
      throw std::runtime_error(absl::StrCat(what_, " failed: ", error.what()));
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
};

class NcclGroup : public ProcessGroup {
 public:
  NcclGroup(KeyValueStore* store, const ProcessGroupOptions& options)
      : options_(options), device_(at::kCUDA, c10::cuda::current_device()) {
    auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = absl::ToChronoMilliseconds(options.timeout);
    backend_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<StoreAdapter>(store, options.name + "/nccl/", options.timeout), options.rank, options.size,
        nccl);
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) override {
    const int64_t part = buffer.numel() / size();
    at::Tensor output = buffer;
    at::Tensor input = buffer.narrow(0, rank() * part, part);
    return Named("all-gather", backend_->_allgather_base(output, input));
  }

  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    at::Tensor out = output, in = input;
    return Named("reduce-scatter", backend_->_reduce_scatter_base(out, in));
  }

  std::unique_ptr<CollectiveWork> AllReduceSum(const at::Tensor& tensor) override {
    return AllReduce(tensor, c10d::ReduceOp::SUM);
  }

  std::unique_ptr<CollectiveWork> AllReduceMax(const at::Tensor& tensor) override {
    return AllReduce(tensor, c10d::ReduceOp::MAX);
  }

  void Barrier() override {
    at::Tensor one = at::ones({1}, at::TensorOptions(device_));
    AllReduceSum(one)->Wait();
    one.item();  // waits for the stream
  }

 private:
  std::unique_ptr<CollectiveWork> AllReduce(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op) {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions reduce;
    reduce.reduceOp = op;
    return Named("all-reduce", backend_->allreduce(tensors, reduce));
  }

  std::unique_ptr<CollectiveWork> Named(const char* collective, c10::intrusive_ptr<c10d::Work> work) {
    return std::make_unique<NcclWork>(
        std::move(work), absl::StrCat(collective, " on rank ", rank(), " of ", size(), " of group ", options_.name));
  }

  const ProcessGroupOptions options_;
  const at::Device device_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> backend_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNcclGroup(KeyValueStore* store, const ProcessGroupOptions& options) {
  return std::make_unique<NcclGroup>(store, options);
}

}  // namespace quartet
