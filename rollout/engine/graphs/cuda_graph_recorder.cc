#include "rollout/engine/graphs/cuda_graph_recorder.h"

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <map>
#include <mutex>

#include "core/hardware/device.h"

namespace quartet {
namespace {

// Recording needs another stream than the default one. The same for all recordings of a device: for each stream that
// computed once, LibTorch keeps a workspace of cuBLAS, tens of megabytes, as long as the process lives.
c10::cuda::CUDAStream RecordingStream(at::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  return streams.emplace(device.index(), c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()))
      .first->second;
}

class CudaForward : public RecordedForward {
 public:
  // Records on the present stream, which has nothing to do.
  CudaForward(const std::function<at::Tensor()>& forward, c10::MempoolId_t pool) {
    // Other threads go on taking memory for staged weights: only what this one does is held against the recording.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    at::Tensor result;
    try {
      result = forward();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the error that is thrown came first
      }
      throw;
    }
    graph_.capture_end();
    // Its memory stays mapped as long as the graph is, and only replays write to it: recordings of other sizes may have
    // it too.
    result_ = at::from_blob(result.mutable_data_ptr(), result.sizes(), result.strides(), result.options());
  }

  at::Tensor Replay() override {
    graph_.replay();
    return result_;
  }

 private:
  at::cuda::CUDAGraph graph_;
  at::Tensor result_;
};

class CudaGraphRecorder : public GraphRecorder {
 public:
  explicit CudaGraphRecorder(at::Device device)
      : device_(device), stream_(RecordingStream(device)), pool_(at::cuda::graph_pool_handle()) {}

  std::unique_ptr<RecordedForward> Record(const std::function<at::Tensor()>& forward) override {
    const c10::cuda::CUDAGuard on_device(device_);
    c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    // Libraries choose kernels, load them and take their workspaces now, which they could not do in a recording.
    forward();
    stream_.synchronize();
    // What the pool is short of is taken from the device: in a recording nothing that is kept can be given back for it.
    GiveBackDeviceMemory();
    const int64_t before = ReadDeviceMemory(device_).reserved;
    auto recorded = std::make_unique<CudaForward>(forward, pool_);
    pool_bytes_ += ReadDeviceMemory(device_).reserved - before;
    return recorded;
  }

  int64_t pool_bytes() const override { return pool_bytes_; }

 private:
  const at::Device device_;
  const c10::cuda::CUDAStream stream_;
  const c10::MempoolId_t pool_;
  int64_t pool_bytes_ = 0;
};

}  // namespace

std::unique_ptr<GraphRecorder> NewCudaGraphRecorder(at::Device device) {
  return std::make_unique<CudaGraphRecorder>(device);
}

}  // namespace quartet
