#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "core/comm/transport/store_adapter.h"
#include "core/comm/transport/transport.h"

namespace quartet {
namespace {

class NcclWork : public TransportWork {
 public:
  explicit NcclWork(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  // Orders the caller's stream behind the collective. A peer that is lost is noticed by the group's watchdog.
  void Wait() override { work_->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class NcclTransport : public Transport {
 public:
  NcclTransport(KeyValueStore* store, const ProcessGroupOptions& options)
      : rank_(options.rank), size_(options.size), device_(at::kCUDA, c10::cuda::current_device()) {
    auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = absl::ToChronoMilliseconds(options.timeout);
    backend_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<StoreAdapter>(store, options.name + "/nccl/", options.timeout), options.rank, options.size,
        nccl);
  }

  at::Device device() const override { return device_; }

  std::unique_ptr<TransportWork> AllGatherInPlace(int64_t, const at::Tensor& buffer) override {
    const int64_t part = buffer.numel() / size_;
    at::Tensor output = buffer;
    at::Tensor input = buffer.narrow(0, rank_ * part, part);
    return std::make_unique<NcclWork>(backend_->_allgather_base(output, input));
  }

  std::unique_ptr<TransportWork> ReduceScatterSum(int64_t, const at::Tensor& output, const at::Tensor& input) override {
    at::Tensor out = output, in = input;
    return std::make_unique<NcclWork>(backend_->_reduce_scatter_base(out, in));
  }

  std::unique_ptr<TransportWork> AllReduce(int64_t, const at::Tensor& tensor, bool max) override {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions reduce;
    reduce.reduceOp = max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    return std::make_unique<NcclWork>(backend_->allreduce(tensors, reduce));
  }

  // NCCL's own watchdog ends what hangs.
  void Abort(int64_t) override {}

 private:
  const int rank_, size_;
  const at::Device device_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> backend_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(KeyValueStore* store, const ProcessGroupOptions& options) {
  return std::make_unique<NcclTransport>(store, options);
}

}  // namespace quartet
