#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <map>
#include <mutex>

#include "core/kernels/cuda/paged_kernel.h"
#include "core/kernels/cuda/paged_rows.h"
#include "core/kernels/cuda/paged_tiles.h"

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

// A thread's lane of its warp.
struct ThreadWarp {
  template <typename T>
  class PerLane {
   public:
    __device__ T& operator()(int) { return value_; }

   private:
    T value_;
  };

  template <typename F>
  __device__ void ForEachLane(F f) {
    f(static_cast<int>(threadIdx.x) % kLanesOfWarp);
  }
  template <int kFrom, int kTo, typename F, typename Op>
  __device__ void Reduce(F f, Op op) {
    float& value = f(static_cast<int>(threadIdx.x) % kLanesOfWarp);
#pragma unroll
    for (int bit = kFrom; bit < kTo; bit *= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, bit));
  }

  template <typename C, typename A, typename B>
  __device__ void Multiply(C c, A a, B b) {
    const int lane = static_cast<int>(threadIdx.x) % kLanesOfWarp;
    float* const sums = c(lane);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a(lane, 0)), "r"(a(lane, 1)), "r"(a(lane, 2)), "r"(a(lane, 3)), "r"(b(lane, 0)), "r"(b(lane, 1)));
  }
  template <typename F>
  __device__ void Transpose(F f) {
    uint32_t& word = f(static_cast<int>(threadIdx.x) % kLanesOfWarp);
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(word));
  }
};

// Block (x, y, z): rows of narrow item x from z * kRowsAtOnce on, key/value head y.
template <int kDims>
__global__ void __launch_bounds__(kThreads) AttendRowsKernel(PagedKernelArgs args) {
  static_assert(kWarps == kRowWarps);
  __shared__ float found[FoundFloats(kDims)];
  const AttentionItem item = args.items[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y), first_row = static_cast<int>(blockIdx.z) * kRowsAtOnce;
  if (first_row >= item.tokens * (args.heads / args.kv_heads)) return;  // the whole block
  ThreadWarp warp;
  AttendRows<kDims>(warp, args, item, kv_head, first_row, static_cast<int>(threadIdx.x) / kLanesOfWarp, found);
  __syncthreads();
  ThreadBlock block;
  MergeWarps<kDims>(block, args, item, kv_head, first_row, found);
}

// Block (x, y): wide item num_narrow + x, key/value head y.
__global__ void __launch_bounds__(kThreads) AttendKernel(PagedKernelArgs args) {
  extern __shared__ __align__(128) char memory[];
  ThreadBlock block;
  AttendItem(block, args, args.items[args.num_narrow + blockIdx.x], static_cast<int>(blockIdx.y), memory);
}

__global__ void __launch_bounds__(kThreads) MergeKernel(PagedKernelArgs args) {
  ThreadBlock block;
  MergeParts(block, args, args.merges[blockIdx.x], static_cast<int>(blockIdx.y));
}

// Block (x, y): eights of a row, tokens.
__global__ void StoreKernel(NewKeys stored) {
  const int64_t c = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * 8;
  if (c >= stored.row) return;
  for (int64_t token = blockIdx.y; token < stored.tokens; token += gridDim.y) {
    const int64_t to = stored.slots[token] * stored.row + c;
    *reinterpret_cast<EightElements*>(stored.key_slots + to) =
        *reinterpret_cast<const EightElements*>(stored.keys + token * stored.keys_stride + c);
    *reinterpret_cast<EightElements*>(stored.value_slots + to) =
        *reinterpret_cast<const EightElements*>(stored.values + token * stored.values_stride + c);
  }
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

cudaError_t AttendNarrow(const PagedKernelArgs& args, cudaStream_t stream) {
  if (args.num_narrow == 0) return cudaSuccess;
  return ForDims(args.head_dim, [&](auto dims) {
    const dim3 blocks(args.num_narrow, args.kv_heads, (args.narrow_rows + kRowsAtOnce - 1) / kRowsAtOnce);
    AttendRowsKernel<decltype(dims)::value><<<blocks, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

cudaError_t AttendWide(const PagedKernelArgs& args, cudaStream_t stream) {
  if (args.num_items == args.num_narrow) return cudaSuccess;
  const int bytes = TileMemory(MostRows(args.head_dim), args.head_dim).bytes;
  const cudaError_t allowed = AllowSharedMemory(bytes);
  if (allowed != cudaSuccess) return allowed;
  AttendKernel<<<dim3(args.num_items - args.num_narrow, args.kv_heads), kThreads, bytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

const char* LaunchPagedKernel(const PagedKernelArgs& args, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  cudaError_t error = AttendNarrow(args, on);
  if (error == cudaSuccess) error = AttendWide(args, on);
  if (error == cudaSuccess && args.num_merges > 0) {
    MergeKernel<<<dim3(args.num_merges, args.kv_heads), kThreads, 0, on>>>(args);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

const char* LaunchStoreInSlots(const NewKeys& stored, void* stream) {
  if (stored.tokens == 0 || stored.row == 0) return nullptr;
  constexpr int64_t kMostRows = (1 << 16) - 1;
  const int64_t eights = stored.row / 8, threads = eights < kThreads ? (eights + 31) / 32 * 32 : kThreads;
  const dim3 blocks(static_cast<unsigned>((eights + threads - 1) / threads),
                    static_cast<unsigned>(stored.tokens < kMostRows ? stored.tokens : kMostRows));
  StoreKernel<<<blocks, static_cast<unsigned>(threads), 0, static_cast<cudaStream_t>(stream)>>>(stored);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace quartet
