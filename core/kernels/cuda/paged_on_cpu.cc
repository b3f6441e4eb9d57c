#include "core/kernels/cuda/paged_on_cpu.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/kernels/cuda/paged_rows.h"
#include "core/kernels/cuda/paged_tiles.h"

namespace quartet {
namespace {

// One thread that does what a group of them would, in another order.
struct OneThread {
  template <typename F>
  void ForEach(int n, F f) {
    for (int i = n - 1; i >= 0; --i) f(i);
  }
  void Scores(const uint16_t* a, int lda, const uint16_t* b, int ldb, float* c, int ldc, int M, int N, int K) {
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += FloatOfBf16(a[m * lda + k]) * FloatOfBf16(b[n * ldb + k]);
        c[m * ldc + n] = sum;
      }
    }
  }
  void AddProduct(const uint16_t* a, int lda, const uint16_t* b, int ldb, float* c, int ldc, int M, int N, int K) {
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) {
        for (int k = 0; k < K; ++k) c[m * ldc + n] += FloatOfBf16(a[m * lda + k]) * FloatOfBf16(b[k * ldb + n]);
      }
    }
  }
};

// The lanes of a warp, one after the other.
struct OneWarp {
  template <typename T>
  class PerLane {
   public:
    T& operator()(int lane) { return values_[static_cast<size_t>(lane)]; }

   private:
    std::array<T, kLanesOfWarp> values_ = {};
  };

  template <typename F>
  void ForEachLane(F f) {
    for (int lane = 0; lane < kLanesOfWarp; ++lane) f(lane);
  }
  template <int kFrom, int kTo, typename F, typename Op>
  void Reduce(F f, Op op) {
    for (int bit = kFrom; bit < kTo; bit *= 2) {
      std::array<float, kLanesOfWarp> before;
      for (int lane = 0; lane < kLanesOfWarp; ++lane) before[lane] = f(lane);
      for (int lane = 0; lane < kLanesOfWarp; ++lane) f(lane) = op(before[lane], before[lane ^ bit]);
    }
  }
};

template <int kRows, int kLanes>
void ComputeNarrow(const PagedKernelArgs& args, const AttentionItem& item, int kv_head) {
  OneThread thread;
  OneWarp warp;
  const int rows = item.tokens * args.heads / args.kv_heads;
  for (int first_row = 0; first_row < rows; first_row += kRows) {
    std::array<float, FoundFloats(kRows, kLanes)> found;
    for (int w = 0; w < kRowWarps; ++w) {
      AttendRows<kRows, kLanes>(warp, args, item, kv_head, first_row, w, found.data());
    }
    MergeWarps<kRows, kLanes>(thread, args, item, kv_head, first_row, found.data());
  }
}

}  // namespace

void ComputePagedItems(const PagedKernelArgs& args) {
  OneThread thread;
  ForRows(args.narrow_rows, args.head_dim, [&](auto rows, auto lanes) {
    for (int i = 0; i < args.num_narrow; ++i) {
      for (int kv_head = 0; kv_head < args.kv_heads; ++kv_head) {
        ComputeNarrow<decltype(rows)::value, decltype(lanes)::value>(args, args.items[i], kv_head);
      }
    }
  });
  const auto bytes = static_cast<size_t>(TileMemory(MostRows(args.head_dim), args.head_dim).bytes);
  const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::aligned_alloc(128, bytes)),
                                                           &std::free);
  for (int i = args.num_narrow; i < args.num_items; ++i) {
    for (int kv_head = 0; kv_head < args.kv_heads; ++kv_head) {
      AttendItem(thread, args, args.items[i], kv_head, memory.get());
    }
  }
  for (int i = 0; i < args.num_merges; ++i) {
    for (int kv_head = 0; kv_head < args.kv_heads; ++kv_head) MergeParts(thread, args, args.merges[i], kv_head);
  }
}

}  // namespace quartet
