#include "core/base/logging.h"
#include "rollout/engine/graphs/cuda_graph_recorder.h"

namespace quartet {

std::unique_ptr<GraphRecorder> NewCudaGraphRecorder(at::Device device) {
  QUARTET_CHECK(false) << "this build has no CUDA, but device " << static_cast<int>(device.type());
  return nullptr;
}

}  // namespace quartet
