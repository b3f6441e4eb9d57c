#include <cuda_runtime.h>

#include "core/kernels/cuda/paged_kernel.h"
#include "core/kernels/cuda/paged_rows.h"

namespace quartet {
namespace {

constexpr int kThreads = kRowWarps * kLanesOfWarp;

// All threads of a block.
struct ThreadBlock {
  template <typename F>
  __device__ void ForEach(int n, F f) {
    for (int i = threadIdx.x; i < n; i += kThreads) f(i);
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

// Block (x, y, z): item first_item + x, its rows from z * 8 * kEights on, key/value head y.
template <int kDims, int kEights>
__global__ void __launch_bounds__(kThreads) AttendKernel(PagedKernelArgs args, int first_item) {
  __shared__ float found[FoundFloats(kDims, kEights)];
  const AttentionItem item = args.items[first_item + blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y), first_row = static_cast<int>(blockIdx.z) * kEights * kEight;
  if (first_row >= item.tokens * (args.heads / args.kv_heads)) return;  // the whole block
  ThreadWarp warp;
  AttendRows<kDims, kEights>(warp, args, item, kv_head, first_row, static_cast<int>(threadIdx.x) / kLanesOfWarp, found);
  __syncthreads();
  ThreadBlock block;
  MergeWarps<kDims, kEights>(block, args, item, kv_head, first_row, found);
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

// Items [first, end), of at most `rows` rows.
template <int kDims, int kEights>
cudaError_t Attend(const PagedKernelArgs& args, int first, int end, int rows, cudaStream_t stream) {
  if (first == end) return cudaSuccess;
  constexpr int kRows = kEights * kEight;
  AttendKernel<kDims, kEights>
      <<<dim3(end - first, args.kv_heads, (rows + kRows - 1) / kRows), kThreads, 0, stream>>>(args, first);
  return cudaGetLastError();
}

}  // namespace

const char* LaunchPagedKernel(const PagedKernelArgs& args, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  cudaError_t error = ForDims(args.head_dim, [&](auto dims) {
    constexpr int kDims = decltype(dims)::value;
    const cudaError_t narrow = Attend<kDims, 1>(args, 0, args.num_narrow, args.narrow_rows, on);
    if (narrow != cudaSuccess) return narrow;
    return Attend<kDims, WideEights(kDims)>(args, args.num_narrow, args.num_items, kWideRows, on);
  });
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
