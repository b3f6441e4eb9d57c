#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <map>
#include <mutex>

#include "core/kernels/cuda/paged_kernel.h"

namespace quartet {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kSixteen = 16;

// All threads of a block. Warps share the sixteens of a product's result.
struct ThreadBlock {
  template <typename F>
  __device__ void ForEach(int n, F f) {
    for (int i = threadIdx.x; i < n; i += kThreads) f(i);
    __syncthreads();
  }

  __device__ void Scores(const uint16_t* a, int lda, const uint16_t* b, int ldb, float* c, int ldc, int M, int N,
                         int K) {
    ForEachSixteen(M, N, [&](int m, int n) {
      Sums sums;
      nvcuda::wmma::fill_fragment(sums, 0.0f);
      for (int k = 0; k < K; k += kSixteen) {
        Left left;
        nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, kSixteen, kSixteen, kSixteen, __nv_bfloat16,
                               nvcuda::wmma::col_major>
            right;
        nvcuda::wmma::load_matrix_sync(left, Bf16(a + m * lda + k), lda);
        nvcuda::wmma::load_matrix_sync(right, Bf16(b + n * ldb + k), ldb);
        nvcuda::wmma::mma_sync(sums, left, right, sums);
      }
      nvcuda::wmma::store_matrix_sync(c + m * ldc + n, sums, ldc, nvcuda::wmma::mem_row_major);
    });
  }

  __device__ void AddProduct(const uint16_t* a, int lda, const uint16_t* b, int ldb, float* c, int ldc, int M, int N,
                             int K) {
    ForEachSixteen(M, N, [&](int m, int n) {
      Sums sums;
      nvcuda::wmma::load_matrix_sync(sums, c + m * ldc + n, ldc, nvcuda::wmma::mem_row_major);
      for (int k = 0; k < K; k += kSixteen) {
        Left left;
        nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, kSixteen, kSixteen, kSixteen, __nv_bfloat16,
                               nvcuda::wmma::row_major>
            right;
        nvcuda::wmma::load_matrix_sync(left, Bf16(a + m * lda + k), lda);
        nvcuda::wmma::load_matrix_sync(right, Bf16(b + k * ldb + n), ldb);
        nvcuda::wmma::mma_sync(sums, left, right, sums);
      }
      nvcuda::wmma::store_matrix_sync(c + m * ldc + n, sums, ldc, nvcuda::wmma::mem_row_major);
    });
  }

 private:
  using Sums = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kSixteen, kSixteen, kSixteen, float>;
  using Left = nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, kSixteen, kSixteen, kSixteen, __nv_bfloat16,
                                      nvcuda::wmma::row_major>;

  static __device__ const __nv_bfloat16* Bf16(const uint16_t* bits) {
    return reinterpret_cast<const __nv_bfloat16*>(bits);
  }

  // f(m, n) for each sixteen by sixteen of M by N, by all threads of one warp.
  template <typename F>
  __device__ void ForEachSixteen(int M, int N, F f) {
    const int columns = N / kSixteen, all = M / kSixteen * columns;
    for (int i = threadIdx.x / 32; i < all; i += kWarps) f(i / columns * kSixteen, i % columns * kSixteen);
    __syncthreads();
  }
};

// Block (x, y): item first_item + x, key/value head y.
__global__ void __launch_bounds__(kThreads) AttendKernel(PagedKernelArgs args, int first_item) {
  extern __shared__ __align__(128) char memory[];
  ThreadBlock block;
  AttendItem(block, args, args.items[first_item + blockIdx.x], static_cast<int>(blockIdx.y), memory);
}

__global__ void __launch_bounds__(kThreads) MergeKernel(PagedKernelArgs args) {
  ThreadBlock block;
  MergeParts(block, args, args.merges[blockIdx.x], static_cast<int>(blockIdx.y));
}

// Lets the kernel share so many bytes on the present device. Asked for once: what has run before starts nothing but
// kernels, as recording it into a graph wants it.
cudaError_t AllowSharedMemory(int bytes) {
  static std::mutex mutex;
  static std::map<int, int> allowed;  // of each device
  int device = 0;
  const cudaError_t found = cudaGetDevice(&device);
  if (found != cudaSuccess) return found;
  const std::lock_guard lock(mutex);
  if (allowed[device] >= bytes) return cudaSuccess;
  const cudaError_t set = cudaFuncSetAttribute(AttendKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (set == cudaSuccess) allowed[device] = bytes;
  return set;
}

cudaError_t Attend(const PagedKernelArgs& args, int first_item, int items, int rows, cudaStream_t stream) {
  if (items == 0) return cudaSuccess;
  const int bytes = TileMemory(rows, args.head_dim).bytes;
  const cudaError_t allowed = AllowSharedMemory(bytes);
  if (allowed != cudaSuccess) return allowed;
  AttendKernel<<<dim3(items, args.kv_heads), kThreads, bytes, stream>>>(args, first_item);
  return cudaGetLastError();
}

}  // namespace

const char* LaunchPagedKernel(const PagedKernelArgs& args, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  cudaError_t error = Attend(args, 0, args.num_narrow, kNarrowRows, on);
  if (error == cudaSuccess) {
    error = Attend(args, args.num_narrow, args.num_items - args.num_narrow, MostRows(args.head_dim), on);
  }
  if (error == cudaSuccess && args.num_merges > 0) {
    MergeKernel<<<dim3(args.num_merges, args.kv_heads), kThreads, 0, on>>>(args);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace quartet
