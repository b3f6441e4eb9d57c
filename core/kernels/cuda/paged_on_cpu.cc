#include "core/kernels/cuda/paged_on_cpu.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

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

}  // namespace

void ComputePagedItems(const PagedKernelArgs& args) {
  OneThread thread;
  const auto attend = [&](int begin, int end, int rows) {
    const auto bytes = static_cast<size_t>(TileMemory(rows, args.head_dim).bytes);
    const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::aligned_alloc(128, bytes)),
                                                             &std::free);
    for (int i = begin; i < end; ++i) {
      for (int kv_head = 0; kv_head < args.kv_heads; ++kv_head) {
        AttendItem(thread, args, args.items[i], kv_head, memory.get());
      }
    }
  };
  attend(0, args.num_narrow, kNarrowRows);
  attend(args.num_narrow, args.num_items, MostRows(args.head_dim));
  for (int i = 0; i < args.num_merges; ++i) {
    for (int kv_head = 0; kv_head < args.kv_heads; ++kv_head) MergeParts(thread, args, args.merges[i], kv_head);
  }
}

}  // namespace quartet
