#include "core/kernels/cpu/products/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/division.h"
#include "core/base/logging.h"
#include "core/hardware/bf16.h"
#include "core/hardware/simd.h"
#include "core/kernels/cpu/products/gemm_tiles.h"

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

// Those that are taken by themselves first.
std::vector<const GemmTiles<uint16_t>*> Bf16TilesByRank() {
  const GemmTiles<uint16_t>*const amx = AmxTiles(), *const avx512 = Avx512Bf16Tiles(),
                                  *const fp32 = &FloatTiles<uint16_t>();
  return IsAvx512Bf16Fast() ? std::vector{amx, avx512, fp32} : std::vector{amx, fp32, avx512};
}

const GemmTiles<uint16_t>& ChooseBf16Tiles() {
  const std::string_view wanted = Wanted();
  const std::vector<const GemmTiles<uint16_t>*> by_rank = Bf16TilesByRank();
  std::string allowed;
  for (const GemmTiles<uint16_t>* tiles : by_rank) {
    if (tiles == nullptr) continue;
    if (wanted.empty() || wanted == tiles->name) return *tiles;
    allowed.append(tiles->name).append(", ");
  }
  if (wanted == EmulatedAmxTiles().name) return EmulatedAmxTiles();
  QUARTET_CHECK(false) << "QUARTET_CPU_KERNELS is '" << wanted << "'; allowed on this CPU: " << allowed
                       << EmulatedAmxTiles().name << " (slow, for tests)";
  std::abort();
}

template <typename Element>
const GemmTiles<Element>& Tiles() {
  static const GemmTiles<Element>& tiles = [&]() -> const GemmTiles<Element>& {
    if constexpr (std::is_same_v<Element, float>) {
      return FloatTiles<float>();
    } else {
      return ChooseBf16Tiles();
    }
  }();
  return tiles;
}

// Behind it the thread goes on without the tiles that it used.
template <typename Element>
struct TileScope {
  TileScope() = default;
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope() {
    if (Tiles<Element>().release != nullptr) Tiles<Element>().release();
  }
};

// Panels that are worked on at a time.
template <typename Element>
int64_t PanelsInCache(int64_t K) {
  return std::max<int64_t>(
      2, Tiles<Element>().panels_bytes / (PanelNumel<Element>(K) * static_cast<int64_t>(sizeof(Element))) / 2 * 2);
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

// Rows of bf16 whose distance is a multiple of this many bytes would share few places of a core's first cache. (Those
// of floats do, too, but a copy of them gains nothing on Zen 5.)
constexpr int64_t kBadStrideBytes = 2048;

template <typename Element>
int64_t PartsOfRows(int64_t rows) {
  return CeilDivide(rows, Tiles<Element>().most_rows);
}
template <typename Element>
int64_t PanelsOfFewRows(int64_t rows) {
  const int64_t parts = PartsOfRows<Element>(rows);
  return Tiles<Element>().panels_for_rows[CeilDivide(rows, parts)];
}

// Some rows of A. They are cut into parts that one tile can take, as equal as they can be.
template <typename Element>
struct Rows {
  int64_t first, count;
  const Element* a;
  int64_t stride;
  bool transposed;  // as in Gemm

  int64_t parts() const { return PartsOfRows<Element>(count); }
  Rows part(int64_t index) const { return between(count * index / parts(), count * (index + 1) / parts()); }
  Rows between(int64_t begin, int64_t end) const {
    return {first + begin, end - begin, a + begin * (transposed ? 1 : stride), stride, transposed};
  }
};

// Rows as a tile reads them.
template <typename Element>
struct PlacedRows {
  int64_t first, count;
  const char* a;
  int64_t stride;         // elements
  int64_t element_bytes;  // of Elements or of floats

  int64_t parts() const { return PartsOfRows<Element>(count); }
  PlacedRows part(int64_t index) const {
    const int64_t begin = count * index / parts(), end = count * (index + 1) / parts();
    return {first + begin, end - begin, a + begin * stride * element_bytes, stride, element_bytes};
  }
};

template <typename To, typename From>
To Converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return FromBf16(value);
  }
}

// 16 P columns of K rows, `stride` apart, as panels.
template <int P>
QUARTET_SIMD_INLINE void PackWholeColumns(const uint16_t* columns, int64_t stride, int64_t K, uint16_t* panels) {
  const auto widened = [](const uint16_t* row) {
    simd::H16 elements;
    std::memcpy(&elements, row, sizeof(elements));
    return __builtin_convertvector(elements, simd::U16);
  };
  const int64_t panel_numel = PanelNumel<uint16_t>(K);
  for (int64_t k = 0; k < K; k += 2, columns += 2 * stride, panels += kStepNumel<uint16_t>) {
    for (int p = 0; p < P; ++p) {
      simd::U16 pairs = widened(columns + p * kPanelRows);
      if (k + 1 < K) pairs |= widened(columns + stride + p * kPanelRows) << 16;
      std::memcpy(panels + p * panel_numel, &pairs, sizeof(pairs));
    }
  }
}
// Two panels at a time: what a line of memory holds.
QUARTET_SIMD_CLONES void PackWholePanels(const uint16_t* columns, int64_t count, int64_t stride, int64_t K,
                                         uint16_t* panels) {
  int64_t p = 0;
  for (; p + 2 <= count; p += 2) {
    PackWholeColumns<2>(columns + p * kPanelRows, stride, K, panels + p * PanelNumel<uint16_t>(K));
  }
  if (p < count) PackWholeColumns<1>(columns + p * kPanelRows, stride, K, panels + p * PanelNumel<uint16_t>(K));
}
void PackWholePanels(const float* columns, int64_t count, int64_t stride, int64_t K, float* panels) {
  for (int64_t p = 0; p < count; ++p, columns += kPanelRows, panels += PanelNumel<float>(K)) {
    for (int64_t k = 0; k < K; ++k) {
      std::memcpy(panels + k * kPanelRows, columns + k * stride, kPanelRows * sizeof(float));
    }
  }
}

template <typename To, typename Element>
PlacedRows<Element> Copied(const Gemm<Element>& gemm, const Rows<Element>& rows) {
  thread_local Scratch copies;
  const int64_t stride = gemm.K + kStepNumel<Element>;
  To* copy = copies.Get<To>(rows.count * stride);
  if constexpr (std::is_same_v<To, uint16_t>) {
    if (rows.transposed) {
      TransposeBf16(rows.a, rows.count, rows.stride, gemm.K, copy, stride);
      return {rows.first, rows.count, reinterpret_cast<const char*>(copy), stride, sizeof(To)};
    }
  }
  if (rows.transposed) {
    for (int64_t k = 0; k < gemm.K; ++k) {
      for (int64_t r = 0; r < rows.count; ++r) copy[r * stride + k] = Converted<To>(rows.a[k * rows.stride + r]);
    }
  } else {
    for (int64_t r = 0; r < rows.count; ++r) {
      std::transform(rows.a + r * rows.stride, rows.a + r * rows.stride + gemm.K, copy + r * stride,
                     [](Element value) { return Converted<To>(value); });
    }
  }
  return {rows.first, rows.count, reinterpret_cast<const char*>(copy), stride, sizeof(To)};
}

// The rows themselves, or a copy, which lives until this thread's next one.
template <typename Element>
PlacedRows<Element> Placed(const Gemm<Element>& gemm, const Rows<Element>& rows) {
  if (Tiles<Element>().widens_rows) return Copied<float>(gemm, rows);
  const bool badly = std::is_same_v<Element, uint16_t> && rows.count > 4 &&
                     rows.stride * static_cast<int64_t>(sizeof(Element)) % kBadStrideBytes == 0;
  if (rows.transposed || badly) return Copied<Element>(gemm, rows);
  return {rows.first, rows.count, reinterpret_cast<const char*>(rows.a), rows.stride, sizeof(Element)};
}

template <typename Element>
void MultiplyPart(const Gemm<Element>& gemm, const PlacedRows<Element>& part, const Element* panels, int64_t count,
                  int64_t n, const NextPanels<Element>& next) {
  Tiles<Element>().multiply(gemm, part.first, part.count, part.a, part.stride, panels, count, n, next);
}

// `rows` by `count` panels, which are the columns from `n` on and stay in the cache.
template <typename Element>
void MultiplyPanels(const Gemm<Element>& gemm, const Rows<Element>& rows, const Element* panels, int64_t count,
                    int64_t n) {
  const int64_t panel_numel = PanelStride(gemm);
  for (int64_t i = 0; i < rows.parts(); ++i) {
    const PlacedRows<Element> part = Placed(gemm, rows.part(i));
    const int64_t most = Tiles<Element>().walks_panels ? count : Tiles<Element>().panels_for_rows[part.count];
    for (int64_t p = 0; p < count; p += most) {
      const int64_t taken = std::min(most, count - p);
      const NextPanels<Element> next = {panels + (p + taken < count ? p + taken : 0) * panel_numel,
                                        Tiles<Element>().walks_panels ? 0 : kStepNumel<Element>};
      MultiplyPart(gemm, part, panels + p * panel_numel, taken, n + p * kPanelRows, next);
    }
  }
}

// Likewise for few rows, which stay in the cache while the panels come from memory. Each part of the rows asks for its
// share of the next panels, so that memory is read all the time; `following` are those behind the last.
template <typename Element>
void MultiplyFewRows(const Gemm<Element>& gemm, const Rows<Element>& all, const Element* panels, int64_t count,
                     int64_t n, const Element* following) {
  const PlacedRows<Element> rows = Placed(gemm, all);
  const int64_t panel_numel = PanelStride(gemm), parts = rows.parts(), most = PanelsOfFewRows<Element>(rows.count);
  const int64_t step_numel = CeilDivide(kStepNumel<Element>, parts), share = gemm.K / kStepInputs<Element> * step_numel;
  for (int64_t p = 0; p < count; p += most) {
    const int64_t taken = std::min(most, count - p);
    const Element* next = p + taken < count ? panels + (p + taken) * panel_numel : following;
    for (int64_t i = 0; i < parts; ++i) {
      MultiplyPart(gemm, rows.part(i), panels + p * panel_numel, taken, n + p * kPanelRows,
                   {next + i * share, step_numel});
    }
  }
}

// So many of A's rows, copied or not, and of B's panels, packed for it or before, stay in the caches; what is copied
// and packed is worth it for many columns, or many rows.
template <typename Element>
int64_t InputsAtATime(const Gemm<Element>& gemm) {
  return std::is_same_v<Element, float> && gemm.a_is_transposed ? 256 : 2048;
}

template <typename Element>
bool IsBetterInParts(const Gemm<Element>& gemm) {
  // Where so many panels stay in the cache anyway, rows come from memory seldom enough.
  constexpr int64_t kEnoughPanels = 4;
  return gemm.K > InputsAtATime(gemm) && !(gemm.b_is_packed && PanelsInCache<Element>(gemm.K) >= kEnoughPanels);
}

// Rows [row_begin, row_end) and columns [column_begin, column_end), as a product of its own.
template <typename Element>
Gemm<Element> PartOf(const Gemm<Element>& gemm, int64_t row_begin, int64_t row_end, int64_t column_begin,
                     int64_t column_end) {
  Gemm<Element> part = gemm;
  part.M = row_end - row_begin;
  part.N = column_end - column_begin;
  part.a += row_begin * (gemm.a_is_transposed ? 1 : gemm.a_stride);
  part.b += gemm.b_is_packed ? column_begin / kPanelRows * PanelStride(gemm)
                             : column_begin * (gemm.b_is_transposed ? 1 : gemm.b_stride);
  const int64_t place = row_begin * gemm.c_stride + column_begin;
  if (part.c != nullptr) part.c += place;
  if (part.c_fp32 != nullptr) part.c_fp32 += place;
  if (part.residual != nullptr) part.residual += place;
  if (part.bias != nullptr) part.bias += column_begin;
  if (part.first_sums != nullptr) part.first_sums += row_begin * gemm.first_stride + column_begin;
  return part;
}

// Some inputs after the others, with sums in fp32 between them: in C, where it is of floats.
template <typename Element>
void MultiplyInParts(const Gemm<Element>& gemm, int64_t row_begin, int64_t row_end, int64_t column_begin,
                     int64_t column_end) {
  constexpr int64_t kSums = 1 << 20;  // that a thread keeps
  const int64_t inputs = InputsAtATime(gemm), most_columns = PanelsInCache<Element>(inputs) * kPanelRows,
                most_rows = std::max<int64_t>(kPanelRows, kSums / most_columns / kPanelRows * kPanelRows);
  thread_local Scratch scratch;
  for (int64_t n = column_begin; n < column_end; n += most_columns) {
    for (int64_t m = row_begin; m < row_end; m += most_rows) {
      const Gemm<Element> whole =
          PartOf(gemm, m, std::min(row_end, m + most_rows), n, std::min(column_end, n + most_columns));
      Gemm<Element> part = whole;
      part.bias = part.residual = nullptr;
      if (gemm.b_is_packed) part.panel_inputs = std::max(gemm.K, gemm.panel_inputs);
      if (part.c_fp32 == nullptr) {
        if constexpr (std::is_same_v<Element, float>) {
          part.c_fp32 = part.c;
        } else {
          part.c_fp32 = scratch.Get<float>(whole.M * whole.N);
          part.c_stride = whole.N;
        }
      }
      const float* const sums = part.c_fp32;
      const int64_t stride = part.c_stride;
      for (int64_t k = 0; k < gemm.K; k += inputs) {
        if (k + inputs >= gemm.K) {
          part.c = whole.c;
          part.c_fp32 = whole.c_fp32;
          part.c_stride = whole.c_stride;
          part.bias = whole.bias;
          part.residual = whole.residual;
        }
        part.K = std::min(inputs, gemm.K - k);
        part.a = whole.a + k * (gemm.a_is_transposed ? gemm.a_stride : 1);
        part.b = whole.b + k * (gemm.b_is_packed ? kPanelRows : gemm.b_is_transposed ? gemm.b_stride : 1);
        Multiply(part, 0, part.M, 0, part.N);
        part.first_sums = sums;
        part.first_stride = stride;
      }
    }
  }
}

}  // namespace

std::string_view CpuKernels() { return Tiles<uint16_t>().name; }

bool IsFp32GemmFast() {
#if defined(__x86_64__)
  static const bool is_fast = __builtin_cpu_supports("avx512f") && !__builtin_cpu_is("intel");
  return is_fast;
#else
  return false;
#endif
}

bool OthersHaveBf16Products() { return &Tiles<uint16_t>() == Avx512Bf16Tiles(); }

template <typename Element>
void PackPanel(const Element* rows, int64_t count, int64_t stride, int64_t K, Element* panel) {
  Tiles<Element>().pack_panel(rows, count, stride, K, panel);
}

template <typename Element>
void PackColumns(const Element* columns, int64_t count, int64_t stride, int64_t K, Element* panels) {
  PackWholePanels(columns, count / kPanelRows, stride, K, panels);
  const int64_t left = count % kPanelRows;
  if (left == 0) return;
  constexpr int64_t kInputs = kStepInputs<Element>;
  columns += count - left;
  panels += count / kPanelRows * PanelNumel<Element>(K);
  std::fill_n(panels, PanelNumel<Element>(K), Element{0});
  for (int64_t k = 0; k < K; ++k) {
    Element* const step = panels + k / kInputs * kStepNumel<Element> + k % kInputs;
    for (int64_t i = 0; i < left; ++i) step[kInputs * i] = columns[k * stride + i];
  }
}

void TransposeBf16(const uint16_t* columns, int64_t count, int64_t stride, int64_t K, uint16_t* rows,
                   int64_t row_stride) {
  if (Tiles<uint16_t>().transpose != nullptr) {
    return Tiles<uint16_t>().transpose(columns, count, stride, K, rows, row_stride);
  }
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t i = 0; i < count; ++i) rows[i * row_stride + k] = columns[k * stride + i];
  }
}

template <typename Element>
bool AreFewRows(int64_t rows, int64_t K) {
  // Rows that are widened are widened again for each few columns.
  if (Tiles<Element>().widens_rows) return rows <= Tiles<Element>().most_rows;
  constexpr int64_t kRowsBytes = int64_t{512} << 10;  // stay in a core's second cache
  return rows * K * static_cast<int64_t>(sizeof(Element)) <= kRowsBytes;
}

template <typename Element>
int64_t ColumnsOfFewRows(int64_t rows) {
  return PanelsOfFewRows<Element>(rows) * kPanelRows;
}

template <typename Element>
void Multiply(const Gemm<Element>& gemm, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
              int64_t next_column) {
  if (row_begin >= row_end) return;
  const TileScope<Element> scope;
  const int64_t panel_numel = PanelStride(gemm);
  const Rows<Element> rows =
      Rows<Element>{0, gemm.M, gemm.a, gemm.a_stride, gemm.a_is_transposed}.between(row_begin, row_end);
  if (gemm.b_is_packed && AreFewRows<Element>(rows.count, gemm.K)) {
    const auto panel_at = [&](int64_t column) { return gemm.b + column / kPanelRows * panel_numel; };
    const int64_t panels = CeilDivide(column_end - column_begin, kPanelRows);
    MultiplyFewRows(gemm, rows, panel_at(column_begin), panels, column_begin, panel_at(next_column));
    return;
  }
  if (IsBetterInParts(gemm)) {
    MultiplyInParts(gemm, row_begin, row_end, column_begin, column_end);
    return;
  }
  // Panels that are packed to be read once, only until they are read.
  const bool read_once = !gemm.b_is_packed && rows.count <= Tiles<Element>().most_rows;
  const int64_t most = read_once ? 2 : PanelsInCache<Element>(gemm.K);
  for (int64_t n = column_begin; n < column_end; n += most * kPanelRows) {
    const int64_t end = std::min(n + most * kPanelRows, column_end);
    const int64_t panels = CeilDivide(end - n, kPanelRows);
    if (gemm.b_is_packed) {
      MultiplyPanels(gemm, rows, gemm.b + n / kPanelRows * panel_numel, panels, n);
      continue;
    }
    thread_local Scratch scratch;
    Element* packed = scratch.Get<Element>(panels * panel_numel);
    if (gemm.b_is_transposed) PackColumns(gemm.b + n, end - n, gemm.b_stride, gemm.K, packed);
    for (int64_t p = 0; p < panels && !gemm.b_is_transposed; ++p) {
      const int64_t first = n + p * kPanelRows;
      PackPanel(gemm.b + first * gemm.b_stride, std::min(kPanelRows, end - first), gemm.b_stride, gemm.K,
                packed + p * panel_numel);
    }
    MultiplyPanels(gemm, rows, packed, panels, n);
  }
}

template void PackPanel(const uint16_t*, int64_t, int64_t, int64_t, uint16_t*);
template void PackPanel(const float*, int64_t, int64_t, int64_t, float*);
template void PackColumns(const uint16_t*, int64_t, int64_t, int64_t, uint16_t*);
template void PackColumns(const float*, int64_t, int64_t, int64_t, float*);
template void Multiply(const Gemm<uint16_t>&, int64_t, int64_t, int64_t, int64_t, int64_t);
template void Multiply(const Gemm<float>&, int64_t, int64_t, int64_t, int64_t, int64_t);
template bool AreFewRows<uint16_t>(int64_t, int64_t);
template bool AreFewRows<float>(int64_t, int64_t);
template int64_t ColumnsOfFewRows<uint16_t>(int64_t);
template int64_t ColumnsOfFewRows<float>(int64_t);

}  // namespace quartet
