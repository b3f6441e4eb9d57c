// Where kernels of this folder are started, in builds that have CUDA.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

namespace quartet {

// LibTorch's present stream on `device`, a cudaStream_t. Null in builds without CUDA, where no kernel starts anything.
void* PresentStream(at::Device device);

// launch(stream) starts kernels there, and says what is wrong, which is thrown as LibTorch's errors are.
template <typename Launch>
void StartOn(at::Device device, const char* what, const Launch& launch) {
  const c10::DeviceGuard guard(device);
  const char* error = launch(PresentStream(device));
  TORCH_CHECK(error == nullptr, what, ": ", error);
}

}  // namespace quartet
