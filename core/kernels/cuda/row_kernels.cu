#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/kernels/cuda/row_kernels.h"

namespace quartet {
namespace {

constexpr int kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
// Elements that a thread reads at once where it can.
constexpr int kAtOnce = 4;

template <typename Element, int N>
struct alignas(sizeof(Element) * N) Few {
  Element at[N];
};

__device__ float Wide(float x) { return x; }
__device__ float Wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void Put(float x, float* to) { *to = x; }
__device__ void Put(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }
template <typename Element>
__device__ float Rounded(float x) {
  Element rounded;
  Put(x, &rounded);
  return Wide(rounded);
}

template <int N, typename Element>
__device__ Few<Element, N> Read(const Element* from) {
  return *reinterpret_cast<const Few<Element, N>*>(from);
}
template <int N, typename Element>
__device__ void Write(const Few<Element, N>& values, Element* to) {
  *reinterpret_cast<Few<Element, N>*>(to) = values;
}

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The sum over the threads of a row, in all of them: a warp's, or of a whole block, whose warps then wait for each
// other.
template <bool kWholeBlock>
__device__ float SumOfRow(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (!kWholeBlock) return value;
  __shared__ float of_warps[kWarps];
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp];
  __syncthreads();
  return sum;
}

// Which row a thread works on among those of its block, and where in it.
template <bool kWholeBlock>
struct Place {
  int row = kWholeBlock ? 0 : threadIdx.x / kWarp;
  int rows = kWholeBlock ? 1 : kWarps;
  int lane = kWholeBlock ? threadIdx.x : threadIdx.x % kWarp;
  int lanes = kWholeBlock ? kThreads : kWarp;
};

template <typename Element, int N, bool kWholeBlock>
__global__ void __launch_bounds__(kThreads)
    RmsNormKernel(const Element* x, const Element* weight, float eps, int64_t rows, int64_t size, Element* out,
                  float* inverse_rms) {
  const Place<kWholeBlock> place;
  const int64_t row = int64_t{blockIdx.x} * place.rows + place.row;
  if (row >= rows) return;  // a whole warp, or a whole block
  x += row * size;
  out += row * size;
  float squares = 0;
  for (int64_t i = place.lane * N; i < size; i += place.lanes * N) {
    const Few<Element, N> values = Read<N>(x + i);
    for (int n = 0; n < N; ++n) squares += Wide(values.at[n]) * Wide(values.at[n]);
  }
  const float mean = SumOfRow<kWholeBlock>(squares) / static_cast<float>(size);
  const float scale = 1.0f / sqrtf(mean + eps);
  if (inverse_rms != nullptr && place.lane == 0) inverse_rms[row] = scale;
  for (int64_t i = place.lane * N; i < size; i += place.lanes * N) {
    const Few<Element, N> values = Read<N>(x + i), weights = Read<N>(weight + i);
    Few<Element, N> normal;
    for (int n = 0; n < N; ++n) {
      Put(Wide(weights.at[n]) * Rounded<Element>(Wide(values.at[n]) * scale), &normal.at[n]);
    }
    Write<N>(normal, out + i);
  }
}

// Block b: rows [b * rows_per_sum, (b + 1) * rows_per_sum), of which as many at a time as a block has places for; each
// of these places adds up the weight's gradients in a row of its own of `own_sums`, [places, size], shared memory.
template <typename Element, int N, bool kWholeBlock>
__global__ void __launch_bounds__(kThreads)
    RmsNormGradientKernel(const Element* x, const Element* weight, const float* inverse_rms, const Element* gradient,
                          int64_t rows, int64_t rows_per_sum, int64_t size, Element* x_gradient, float* weight_sums) {
  extern __shared__ float own_sums[];
  const Place<kWholeBlock> place;
  float* const sums = own_sums + place.row * size;
  const bool wants_sums = weight_sums != nullptr;
  if (wants_sums) {
    for (int64_t i = threadIdx.x; i < size * place.rows; i += kThreads) own_sums[i] = 0;
    __syncthreads();
  }
  const int64_t end = min(rows, (int64_t{blockIdx.x} + 1) * rows_per_sum);
  for (int64_t row = int64_t{blockIdx.x} * rows_per_sum + place.row; row < end; row += place.rows) {
    const int64_t first = row * size;
    float products = 0;
    for (int64_t i = place.lane * N; i < size; i += place.lanes * N) {
      const Few<Element, N> values = Read<N>(x + first + i), weights = Read<N>(weight + i),
                            gradients = Read<N>(gradient + first + i);
      for (int n = 0; n < N; ++n) products += Wide(values.at[n]) * Wide(weights.at[n]) * Wide(gradients.at[n]);
    }
    const float scale = inverse_rms[row];
    const float along = SumOfRow<kWholeBlock>(products) * scale * scale / static_cast<float>(size);
    for (int64_t i = place.lane * N; i < size; i += place.lanes * N) {
      const Few<Element, N> values = Read<N>(x + first + i), weights = Read<N>(weight + i),
                            gradients = Read<N>(gradient + first + i);
      Few<Element, N> found;
      for (int n = 0; n < N; ++n) {
        const float value = Wide(values.at[n]), incoming = Wide(gradients.at[n]);
        Put((incoming * Wide(weights.at[n]) - value * along) * scale, &found.at[n]);
        if (wants_sums) sums[i + n] += incoming * Rounded<Element>(value * scale);
      }
      Write<N>(found, x_gradient + first + i);
    }
  }
  if (!wants_sums) return;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    float sum = 0;
    for (int p = 0; p < place.rows; ++p) sum += own_sums[p * size + i];
    weight_sums[blockIdx.x * size + i] = sum;
  }
}

// Threads (x, y): pairs of a token, tokens.
template <typename Element>
__global__ void RotateKernel(const Element* x, int64_t x_stride, const float* cosines, const float* sines,
                             int64_t table_stride, float sign, int64_t tokens, int pairs, int half, Element* out) {
  for (int64_t token = blockIdx.y; token < tokens; token += gridDim.y) {
    for (int p = blockIdx.x * blockDim.x + threadIdx.x; p < pairs; p += gridDim.x * blockDim.x) {
      const int i = p % half, at = p / half * 2 * half + i;
      const float cosine = cosines[token * table_stride + i], sine = sines[token * table_stride + i] * sign;
      const Element* const from = x + token * x_stride + at;
      Element* const to = out + token * 2 * pairs + at;
      const float first = Wide(from[0]), second = Wide(from[half]);
      Put(first * cosine - second * sine, to);
      Put(second * cosine + first * sine, to + half);
    }
  }
}

// Threads (x, y): elements of a row, rows.
template <typename Element, int N>
__global__ void SwiGluKernel(const Element* gate, const Element* up, int64_t stride, int64_t rows, int64_t size,
                             Element* out) {
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    for (int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * N; i < size;
         i += int64_t{gridDim.x} * blockDim.x * N) {
      const Few<Element, N> gates = Read<N>(gate + row * stride + i), ups = Read<N>(up + row * stride + i);
      Few<Element, N> found;
      for (int n = 0; n < N; ++n) {
        const float x = Wide(gates.at[n]);
        Put(Rounded<Element>(x * Sigmoid(x)) * Wide(ups.at[n]), &found.at[n]);
      }
      Write<N>(found, out + row * size + i);
    }
  }
}

template <typename Element, int N>
__global__ void SwiGluGradientKernel(const Element* gate, const Element* up, const Element* gradient, int64_t count,
                                     Element* gate_gradient, Element* up_gradient) {
  for (int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * N; i < count;
       i += int64_t{gridDim.x} * blockDim.x * N) {
    const Few<Element, N> gates = Read<N>(gate + i), ups = Read<N>(up + i), gradients = Read<N>(gradient + i);
    Few<Element, N> of_gate, of_up;
    for (int n = 0; n < N; ++n) {
      const float x = Wide(gates.at[n]), incoming = Wide(gradients.at[n]), sigmoid = Sigmoid(x);
      Put(incoming * Rounded<Element>(x * sigmoid), &of_up.at[n]);
      Put(incoming * Wide(ups.at[n]) * sigmoid * (1.0f + x * (1.0f - sigmoid)), &of_gate.at[n]);
    }
    Write<N>(of_gate, gate_gradient + i);
    Write<N>(of_up, up_gradient + i);
  }
}

// Threads (x, y): elements of a row, rows.
template <typename Element, int N>
__global__ void SumCopiesKernel(const Element* copies, const int32_t* starts, const int32_t* places, int64_t rows,
                                int64_t size, Element* sums) {
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const int32_t begin = starts[row], end = starts[row + 1];
    for (int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * N; i < size;
         i += int64_t{gridDim.x} * blockDim.x * N) {
      float sum[N] = {};
      for (int32_t c = begin; c < end; ++c) {
        const Few<Element, N> copy = Read<N>(copies + places[c] * size + i);
        for (int n = 0; n < N; ++n) sum[n] += Wide(copy.at[n]);
      }
      Few<Element, N> found;
      for (int n = 0; n < N; ++n) Put(sum[n], &found.at[n]);
      Write<N>(found, sums + row * size + i);
    }
  }
}

template <int N>
struct Count {
  static constexpr int value = N;
};

// run(Element{}, Count<N>{}): the type, and how many elements are read at once, for memory that begins at `pointers`
// and rows of `size`.
template <typename Run, typename... Pointers>
const char* ForElements(RowElement element, const Run& run, int64_t size, const Pointers*... pointers) {
  const uintptr_t places = (reinterpret_cast<uintptr_t>(pointers) | ...);
  const auto with = [&](auto zero) {
    if (size % kAtOnce == 0 && places % (sizeof(zero) * kAtOnce) == 0) {
      run(zero, Count<kAtOnce>());
    } else {
      run(zero, Count<1>());
    }
  };
  if (element == RowElement::kFloat) {
    with(float{});
  } else {
    with(__nv_bfloat16{});
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Blocks for so many threads, each of which goes on where there are more things than that.
int BlocksFor(int64_t threads) {
  constexpr int64_t kMost = 1 << 16;
  return static_cast<int>(std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, kMost));
}

// Blocks (x, y) for so many threads of each of `rows` rows.
dim3 BlocksOfRows(int64_t threads, int64_t rows) {
  constexpr int64_t kMost = (1 << 16) - 1;
  return dim3(BlocksFor(threads), static_cast<unsigned>(std::min(rows, kMost)));
}

template <typename Element>
const Element* In(const void* pointer) {
  return static_cast<const Element*>(pointer);
}
template <typename Element>
Element* Out(void* pointer) {
  return static_cast<Element*>(pointer);
}

}  // namespace

const char* LaunchRmsNorm(RowElement element, const void* x, const void* weight, double eps, int64_t rows, int64_t size,
                          void* out, float* inverse_rms, void* stream) {
  if (rows == 0 || size == 0) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  return ForElements(
      element,
      [&](auto zero, auto count) {
        using E = decltype(zero);
        constexpr int N = decltype(count)::value;
        if (size <= kShortRow) {
          RmsNormKernel<E, N, false><<<static_cast<unsigned>((rows + kWarps - 1) / kWarps), kThreads, 0, on>>>(
              In<E>(x), In<E>(weight), static_cast<float>(eps), rows, size, Out<E>(out), inverse_rms);
        } else {
          RmsNormKernel<E, N, true><<<static_cast<unsigned>(rows), kThreads, 0, on>>>(
              In<E>(x), In<E>(weight), static_cast<float>(eps), rows, size, Out<E>(out), inverse_rms);
        }
      },
      size, x, weight, static_cast<const void*>(out));
}

const char* LaunchRmsNormGradient(RowElement element, const void* x, const void* weight, const float* inverse_rms,
                                  const void* out_gradient, int64_t rows, int64_t size, void* x_gradient,
                                  float* weight_sums, void* stream) {
  if (rows == 0 || size == 0) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  const int64_t rows_per_sum = RmsNormRowsPerSum(size);
  const auto blocks = static_cast<unsigned>((rows + rows_per_sum - 1) / rows_per_sum);
  cudaError_t allowed = cudaSuccess;
  const auto launch = [&](auto kernel, int places, auto zero) {
    using E = decltype(zero);
    const int bytes = weight_sums == nullptr ? 0 : static_cast<int>(places * size * sizeof(float));
    constexpr int kAlwaysAllowed = 48 << 10;
    if (bytes > kAlwaysAllowed) {
      allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      if (allowed != cudaSuccess) return;
    }
    kernel<<<blocks, kThreads, bytes, on>>>(In<E>(x), In<E>(weight), inverse_rms, In<E>(out_gradient), rows,
                                            rows_per_sum, size, Out<E>(x_gradient), weight_sums);
  };
  const char* error = ForElements(
      element,
      [&](auto zero, auto count) {
        using E = decltype(zero);
        constexpr int N = decltype(count)::value;
        if (size <= kShortRow) {
          launch(RmsNormGradientKernel<E, N, false>, kWarps, zero);
        } else {
          launch(RmsNormGradientKernel<E, N, true>, 1, zero);
        }
      },
      size, x, weight, out_gradient, static_cast<const void*>(x_gradient));
  return allowed == cudaSuccess ? error : cudaGetErrorString(allowed);
}

const char* LaunchRotate(RowElement element, const void* x, int64_t x_stride, const float* cosines, const float* sines,
                         int64_t table_stride, bool back, int64_t tokens, int64_t heads, int64_t d, void* out,
                         void* stream) {
  const auto half = static_cast<int>(d / 2), pairs = static_cast<int>(heads * half);
  if (tokens == 0 || pairs == 0) return nullptr;
  return ForElements(
      element,
      [&](auto zero, auto) {
        using E = decltype(zero);
        RotateKernel<E><<<BlocksOfRows(pairs, tokens), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            In<E>(x), x_stride, cosines, sines, table_stride, back ? -1.0f : 1.0f, tokens, pairs, half, Out<E>(out));
      },
      1, x);
}

const char* LaunchSwiGlu(RowElement element, const void* gate, const void* up, int64_t stride, int64_t rows,
                         int64_t size, void* out, void* stream) {
  if (rows == 0 || size == 0) return nullptr;
  return ForElements(
      element,
      [&](auto zero, auto few) {
        using E = decltype(zero);
        constexpr int N = decltype(few)::value;
        SwiGluKernel<E, N><<<BlocksOfRows(size / N, rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            In<E>(gate), In<E>(up), stride, rows, size, Out<E>(out));
      },
      stride % kAtOnce == 0 ? size : 1, gate, up, static_cast<const void*>(out));
}

const char* LaunchSwiGluGradient(RowElement element, const void* gate, const void* up, const void* out_gradient,
                                 int64_t count, void* gate_gradient, void* up_gradient, void* stream) {
  if (count == 0) return nullptr;
  return ForElements(
      element,
      [&](auto zero, auto few) {
        using E = decltype(zero);
        constexpr int N = decltype(few)::value;
        SwiGluGradientKernel<E, N><<<BlocksFor(count / N), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            In<E>(gate), In<E>(up), In<E>(out_gradient), count, Out<E>(gate_gradient), Out<E>(up_gradient));
      },
      count, gate, up, out_gradient, static_cast<const void*>(gate_gradient), static_cast<const void*>(up_gradient));
}

const char* LaunchSumCopies(RowElement element, const void* copies, const int32_t* starts, const int32_t* places,
                            int64_t rows, int64_t size, void* sums, void* stream) {
  if (rows == 0 || size == 0) return nullptr;
  return ForElements(
      element,
      [&](auto zero, auto few) {
        using E = decltype(zero);
        constexpr int N = decltype(few)::value;
        SumCopiesKernel<E, N><<<BlocksOfRows(size / N, rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            In<E>(copies), starts, places, rows, size, Out<E>(sums));
      },
      size, copies, static_cast<const void*>(sums));
}

}  // namespace quartet
