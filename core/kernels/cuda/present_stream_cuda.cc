#include <c10/cuda/CUDAStream.h>

#include "core/kernels/cuda/present_stream.h"

namespace quartet {

void* PresentStream(at::Device device) { return c10::cuda::getCurrentCUDAStream(device.index()).stream(); }

}  // namespace quartet
