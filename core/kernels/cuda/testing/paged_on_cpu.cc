#include "core/kernels/cuda/testing/paged_on_cpu.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/kernels/cuda/paged_plan.h"
#include "core/kernels/cuda/paged_rows.h"

namespace quartet {
namespace {

// One thread that does what a group of them would, in another order.
struct OneThread {
  template <typename F>
  void ForEach(int n, F f) {
    for (int i = n - 1; i >= 0; --i) f(i);
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

  // Where lanes hold what, as PTX says of both instructions: lane 4 g + j a word's two elements of columns 2 j and 2 j
  // + 1 (of b: rows), and more of them eight rows or columns farther on.
  template <typename C, typename A, typename B>
  void Multiply(C c, A a, B b) {
    const auto element = [](uint32_t word, int i) { return FloatOfBf16(static_cast<uint16_t>(word >> 16 * i)); };
    std::array<std::array<float, 16>, 16> left;
    std::array<std::array<float, 8>, 16> right;
    for (int lane = 0; lane < kLanesOfWarp; ++lane) {
      const int g = lane / 4, j = lane % 4;
      for (int i = 0; i < 2; ++i) {
        for (int k = 0; k < 4; ++k) left[g + 8 * (k % 2)][2 * j + i + 8 * (k / 2)] = element(a(lane, k), i);
        for (int k = 0; k < 2; ++k) right[2 * j + i + 8 * k][g] = element(b(lane, k), i);
      }
    }
    for (int lane = 0; lane < kLanesOfWarp; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int m = lane / 4 + 8 * (i / 2), n = 2 * (lane % 4) + i % 2;
        for (int k = 0; k < 16; ++k) c(lane)[i] += left[m][k] * right[k][n];
      }
    }
  }
  template <typename F>
  void Transpose(F f) {
    std::array<uint32_t, kLanesOfWarp> before;
    for (int lane = 0; lane < kLanesOfWarp; ++lane) before[lane] = f(lane);
    const auto element = [&before](int row, int column) {
      return before[4 * row + column / 2] >> 16 * (column % 2) & 0xffff;
    };
    for (int lane = 0; lane < kLanesOfWarp; ++lane) {
      const int row = lane / 4, column = 2 * (lane % 4);
      f(lane) = element(column, row) | element(column + 1, row) << 16;
    }
  }
};

template <int kDims, int kEights>
void ComputeItem(const PagedKernelArgs& args, const AttentionItem& item) {
  OneThread thread;
  OneWarp warp;
  const int rows = item.tokens * args.heads / args.kv_heads;
  std::vector<float> found(FoundFloats(kDims, kEights));
  for (int kv_head = 0; kv_head < args.kv_heads; ++kv_head) {
    for (int first_row = 0; first_row < rows; first_row += kEights * kEight) {
      for (int w = 0; w < kRowWarps; ++w) {
        AttendRows<kDims, kEights>(warp, args, item, kv_head, first_row, w, found.data());
      }
      MergeWarps<kDims, kEights>(thread, args, item, kv_head, first_row, found.data());
    }
  }
}

[[maybe_unused]] const bool in_place = (compute_items_of_host = &ComputePagedItems) != nullptr;

}  // namespace

void ComputePagedItems(const PagedKernelArgs& args) {
  OneThread thread;
  ForDims(args.head_dim, [&](auto dims) {
    constexpr int kDims = decltype(dims)::value;
    for (int i = 0; i < args.num_narrow; ++i) ComputeItem<kDims, 1>(args, args.items[i]);
    for (int i = args.num_narrow; i < args.num_items; ++i) ComputeItem<kDims, WideEights(kDims)>(args, args.items[i]);
  });
  for (int i = 0; i < args.num_merges; ++i) {
    for (int kv_head = 0; kv_head < args.kv_heads; ++kv_head) MergeParts(thread, args, args.merges[i], kv_head);
  }
}

}  // namespace quartet
