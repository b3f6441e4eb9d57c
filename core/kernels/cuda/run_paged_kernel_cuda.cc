#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/kernels/cuda/paged_kernel.h"
#include "core/kernels/cuda/run_paged_kernel.h"

namespace quartet {

const char* RunPagedKernel(const PagedKernelArgs& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  return LaunchPagedKernel(args, c10::cuda::getCurrentCUDAStream(device.index()).stream());
}

}  // namespace quartet
