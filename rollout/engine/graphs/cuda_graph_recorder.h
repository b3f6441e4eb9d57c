// The recorder of builds with CUDA.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "rollout/engine/graphs/graph_recorder.h"

namespace quartet {

// CHECK-fails in builds without CUDA, where there is no such device.
std::unique_ptr<GraphRecorder> NewCudaGraphRecorder(at::Device device);

}  // namespace quartet
