#include "core/kernels/cpu/bf16_gemm.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/base/logging.h"
#include "core/hardware/bf16.h"
#include "core/kernels/cpu/bf16_tiles.h"

namespace quartet {
namespace {

std::string_view Wanted() {
  const char* value = std::getenv("QUARTET_CPU_KERNELS");
  return value == nullptr ? "" : value;
}

// Intel's cores make fewer products by avx512_bf16 than of floats, AMD's more (docs/benchmarks.md). By the maker, not
// by measuring: all ranks of a run must come to the same.
bool IsAvx512Bf16Fast() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

bool HasAmx() {
#if defined(__x86_64__)
  constexpr unsigned kAmxBf16 = 1u << 22;  // of leaf 7, in EDX
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0;
#else
  return false;
#endif
}

const Bf16Tiles& ChooseTiles() {
  const std::string_view wanted = Wanted();
  QUARTET_CHECK(wanted.empty() || wanted == "fp32" || wanted == "avx512_bf16")
      << "QUARTET_CPU_KERNELS is '" << wanted << "'; allowed: fp32, avx512_bf16";
  const Bf16Tiles* avx512 = Avx512Bf16Tiles();
  QUARTET_CHECK(wanted != "avx512_bf16" || avx512 != nullptr)
      << "QUARTET_CPU_KERNELS is 'avx512_bf16', which this CPU has not got; allowed here: fp32";
  const bool by_bf16 = wanted.empty() ? avx512 != nullptr && IsAvx512Bf16Fast() : wanted == "avx512_bf16";
  return by_bf16 ? *avx512 : FloatBf16Tiles();
}

const Bf16Tiles& Tiles() {
  static const Bf16Tiles& tiles = ChooseTiles();
  return tiles;
}

// What stays in a core's second cache.
constexpr int64_t kCacheBytes = int64_t{512} << 10;

// Panels that are worked on at a time: a part of B that stays there.
int64_t PanelsInCache(int64_t K) {
  return std::max<int64_t>(2, kCacheBytes / (PanelNumel(K) * static_cast<int64_t>(sizeof(uint16_t))) / 2 * 2);
}

struct FreeAligned {
  void operator()(char* memory) const { std::free(memory); }
};

// Memory of one thread, kept for the next call.
class Scratch {
 public:
  template <typename Element>
  Element* Get(int64_t numel) {
    const int64_t bytes = (numel * static_cast<int64_t>(sizeof(Element)) + 63) / 64 * 64;
    if (bytes_ < bytes) {
      memory_.reset(static_cast<char*>(std::aligned_alloc(64, bytes)));
      if (memory_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return reinterpret_cast<Element*>(memory_.get());
  }

 private:
  std::unique_ptr<char, FreeAligned> memory_;
  int64_t bytes_ = 0;
};

// Rows whose distance is a multiple of this many bytes would share few places of a core's first cache.
constexpr int64_t kBadStrideBytes = 2048;

int64_t PartsOfRows(int64_t rows) { return (rows + Tiles().most_rows - 1) / Tiles().most_rows; }
int64_t PanelsOfFewRows(int64_t rows) {
  const int64_t parts = PartsOfRows(rows);
  return Tiles().panels_for_rows[(rows + parts - 1) / parts];
}

// Some rows of A. They are cut into parts that one tile can take, as equal as they can be.
struct Rows {
  int64_t first, count;
  const uint16_t* a;
  int64_t stride;
  bool transposed;  // as in Bf16Gemm

  int64_t parts() const { return PartsOfRows(count); }
  Rows part(int64_t index) const { return between(count * index / parts(), count * (index + 1) / parts()); }
  Rows between(int64_t begin, int64_t end) const {
    return {first + begin, end - begin, a + begin * (transposed ? 1 : stride), stride, transposed};
  }
};

// Rows as a tile reads them.
struct PlacedRows {
  int64_t first, count;
  const char* a;
  int64_t stride;         // elements
  int64_t element_bytes;  // of bf16 or of floats

  int64_t parts() const { return PartsOfRows(count); }
  PlacedRows part(int64_t index) const {
    const int64_t begin = count * index / parts(), end = count * (index + 1) / parts();
    return {first + begin, end - begin, a + begin * stride * element_bytes, stride, element_bytes};
  }
};

void Convert(uint16_t bits, uint16_t* element) { *element = bits; }
void Convert(uint16_t bits, float* element) { *element = FromBf16(bits); }

template <typename Element>
PlacedRows Copied(const Bf16Gemm& gemm, const Rows& rows) {
  thread_local Scratch copies;
  const int64_t stride = gemm.K + kStepNumel;
  auto* copy = copies.Get<Element>(rows.count * stride);
  if (rows.transposed) {
    for (int64_t k = 0; k < gemm.K; ++k) {
      for (int64_t r = 0; r < rows.count; ++r) Convert(rows.a[k * rows.stride + r], &copy[r * stride + k]);
    }
  } else {
    for (int64_t r = 0; r < rows.count; ++r) {
      for (int64_t k = 0; k < gemm.K; ++k) Convert(rows.a[r * rows.stride + k], &copy[r * stride + k]);
    }
  }
  return {rows.first, rows.count, reinterpret_cast<const char*>(copy), stride, sizeof(Element)};
}

// The rows themselves, or a copy, which lives until this thread's next one.
PlacedRows Placed(const Bf16Gemm& gemm, const Rows& rows) {
  if (Tiles().reads_floats) return Copied<float>(gemm, rows);
  const bool badly = rows.count > 4 && rows.stride * static_cast<int64_t>(sizeof(uint16_t)) % kBadStrideBytes == 0;
  if (rows.transposed || badly) return Copied<uint16_t>(gemm, rows);
  return {rows.first, rows.count, reinterpret_cast<const char*>(rows.a), rows.stride, sizeof(uint16_t)};
}

void MultiplyPart(const Bf16Gemm& gemm, const PlacedRows& part, const uint16_t* panels, int64_t count, int64_t n,
                  const NextPanels& next) {
  Tiles().tile[part.count - 1][count - 1](gemm, part.first, part.a, part.stride, panels, n, next);
}

// `rows` by `count` panels, which are the columns from `n` on and stay in the cache.
void MultiplyPanels(const Bf16Gemm& gemm, const Rows& rows, const uint16_t* panels, int64_t count, int64_t n) {
  const int64_t panel_numel = PanelNumel(gemm.K);
  for (int64_t i = 0; i < rows.parts(); ++i) {
    const PlacedRows part = Placed(gemm, rows.part(i));
    const int64_t most = Tiles().panels_for_rows[part.count];
    for (int64_t p = 0; p < count; p += most) {
      const int64_t taken = std::min(most, count - p);
      const NextPanels next = {panels + (p + taken < count ? p + taken : 0) * panel_numel, kStepNumel};
      MultiplyPart(gemm, part, panels + p * panel_numel, taken, n + p * kPanelRows, next);
    }
  }
}

// Likewise for few rows, which stay in the cache while the panels come from memory. Each part of the rows asks for its
// share of the next panels, so that memory is read all the time; `following` are those behind the last.
void MultiplyFewRows(const Bf16Gemm& gemm, const Rows& all, const uint16_t* panels, int64_t count, int64_t n,
                     const uint16_t* following) {
  const PlacedRows rows = Placed(gemm, all);
  const int64_t panel_numel = PanelNumel(gemm.K), parts = rows.parts(), most = PanelsOfFewRows(rows.count);
  const int64_t step_numel = (kStepNumel + parts - 1) / parts, share = gemm.K / 2 * step_numel;
  for (int64_t p = 0; p < count; p += most) {
    const int64_t taken = std::min(most, count - p);
    const uint16_t* next = p + taken < count ? panels + (p + taken) * panel_numel : following;
    for (int64_t i = 0; i < parts; ++i) {
      MultiplyPart(gemm, rows.part(i), panels + p * panel_numel, taken, n + p * kPanelRows,
                   {next + i * share, step_numel});
    }
  }
}

// `count` columns of K rows, `stride` apart, as one panel.
void PackColumns(const uint16_t* columns, int64_t count, int64_t stride, int64_t K, uint16_t* panel) {
  constexpr uint16_t kZeros[kPanelRows] = {};
  for (int64_t k = 0; k < K; k += 2, panel += kStepNumel) {
    const uint16_t *even = columns + k * stride, *odd = k + 1 < K ? even + stride : kZeros;
    if (count == kPanelRows) {
      for (int64_t i = 0; i < kPanelRows; ++i) {
        panel[2 * i] = even[i];
        panel[2 * i + 1] = odd[i];
      }
      continue;
    }
    std::fill_n(panel, kStepNumel, uint16_t{0});
    for (int64_t i = 0; i < count; ++i) {
      panel[2 * i] = even[i];
      panel[2 * i + 1] = odd[i];
    }
  }
}

}  // namespace

std::string_view CpuKernels() { return Tiles().name; }

bool OthersHaveBf16Products() { return &Tiles() == Avx512Bf16Tiles() || (Wanted().empty() && HasAmx()); }

void PackPanel(const uint16_t* rows, int64_t count, int64_t stride, int64_t K, uint16_t* panel) {
  Tiles().pack_panel(rows, count, stride, K, panel);
}

bool AreFewRows(int64_t rows, int64_t K) {
  // Rows that are widened are widened again for each few columns.
  if (Tiles().reads_floats) return rows <= Tiles().most_rows;
  return rows * K * static_cast<int64_t>(sizeof(uint16_t)) <= kCacheBytes;
}

int64_t ColumnsOfFewRows(int64_t rows) { return PanelsOfFewRows(rows) * kPanelRows; }

void MultiplyBf16(const Bf16Gemm& gemm, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                  int64_t next_column) {
  if (row_begin >= row_end) return;
  const int64_t panel_numel = PanelNumel(gemm.K);
  const Rows rows = Rows{0, gemm.M, gemm.a, gemm.a_stride, gemm.a_is_transposed}.between(row_begin, row_end);
  if (gemm.b_is_packed && AreFewRows(rows.count, gemm.K)) {
    const auto panel_at = [&](int64_t column) { return gemm.b + column / kPanelRows * panel_numel; };
    const int64_t panels = (column_end - column_begin + kPanelRows - 1) / kPanelRows;
    MultiplyFewRows(gemm, rows, panel_at(column_begin), panels, column_begin, panel_at(next_column));
    return;
  }
  // Panels that are packed to be read once, only until they are read.
  const bool read_once = !gemm.b_is_packed && rows.count <= Tiles().most_rows;
  const int64_t most = read_once ? 2 : PanelsInCache(gemm.K);
  for (int64_t n = column_begin; n < column_end; n += most * kPanelRows) {
    const int64_t end = std::min(n + most * kPanelRows, column_end);
    const int64_t panels = (end - n + kPanelRows - 1) / kPanelRows;
    if (gemm.b_is_packed) {
      MultiplyPanels(gemm, rows, gemm.b + n / kPanelRows * panel_numel, panels, n);
      continue;
    }
    thread_local Scratch scratch;
    uint16_t* packed = scratch.Get<uint16_t>(panels * panel_numel);
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t first = n + p * kPanelRows;
      const int64_t count = std::min(kPanelRows, end - first);
      if (gemm.b_is_transposed) {
        PackColumns(gemm.b + first, count, gemm.b_stride, gemm.K, packed + p * panel_numel);
      } else {
        PackPanel(gemm.b + first * gemm.b_stride, count, gemm.b_stride, gemm.K, packed + p * panel_numel);
      }
    }
    MultiplyPanels(gemm, rows, packed, panels, n);
  }
}

}  // namespace quartet
