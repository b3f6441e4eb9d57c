#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/base/splitmix64.h"
#include "core/kernels/cuda/hash_elements.h"

namespace quartet {
namespace {

constexpr int kThreads = 256, kWarp = 32;

template <typename Bits>
__global__ void __launch_bounds__(kThreads)
    HashKernel(const Bits* data, uint64_t first_position, int64_t count, unsigned long long* sum) {
  uint64_t own = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    own += SplitMixFinalise((first_position + static_cast<uint64_t>(i)) * kSplitMixStride + data[i]);
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) own += __shfl_xor_sync(0xffffffffu, own, offset);
  if (threadIdx.x % kWarp == 0) atomicAdd(sum, static_cast<unsigned long long>(own));
}

template <typename Bits>
void Start(const void* data, int64_t first_position, int64_t count, uint64_t* sum, void* stream) {
  constexpr int64_t kPerThread = 32, kMostBlocks = 1 << 16;
  const int64_t blocks = std::clamp<int64_t>(count / (kThreads * kPerThread), 1, kMostBlocks);
  HashKernel<Bits><<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const Bits*>(data), static_cast<uint64_t>(first_position), count,
      reinterpret_cast<unsigned long long*>(sum));
}

}  // namespace

const char* LaunchHashElements(const void* data, int element_bytes, int64_t first_position, int64_t count,
                               uint64_t* sum, void* stream) {
  if (count == 0) return nullptr;
  switch (element_bytes) {
    case 1:
      Start<uint8_t>(data, first_position, count, sum, stream);
      break;
    case 2:
      Start<uint16_t>(data, first_position, count, sum, stream);
      break;
    case 4:
      Start<uint32_t>(data, first_position, count, sum, stream);
      break;
    case 8:
      Start<uint64_t>(data, first_position, count, sum, stream);
      break;
    default:
      return "no hash for elements of this size";
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace quartet
