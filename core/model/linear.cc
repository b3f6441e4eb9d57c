#include "core/model/linear.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/meta_device.h"
#include "core/base/parallel.h"
#include "core/model/bf16_gemm.h"

namespace quartet {
namespace {

// Columns of C that go to one thread together: two panels share each load of a row.
constexpr int64_t kUnitColumns = 2 * kPanelRows;

// Units of one call, for a thread that is worth waking: about 10 microseconds at 20 GiB/s or 200 GFLOP/s.
int64_t UnitsAThread(int64_t rows, int64_t K) {
  const int64_t bytes = kUnitColumns * K * 2, operations = 2 * rows * kUnitColumns * K;
  return std::max<int64_t>(1, std::min(int64_t{200'000} / bytes, int64_t{2'000'000} / operations));
}

void Multiply(const Bf16Gemm& gemm) {
  const int64_t units = (gemm.N + kUnitColumns - 1) / kUnitColumns;
  // Rows are divided too only where columns are too few: each thread packs the columns that it works on.
  constexpr int64_t kFewestRows = 64;
  const int64_t threads = at::get_num_threads();
  const int64_t parts = std::clamp<int64_t>(threads / units, 1, std::max<int64_t>(1, gemm.M / kFewestRows));
  at::parallel_for(0, units * parts, UnitsAThread(gemm.M / parts, gemm.K), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t part = begin / units, first = begin % units, last = std::min(units, first + end - begin);
      MultiplyBf16(gemm, gemm.M * part / parts, gemm.M * (part + 1) / parts, first * kUnitColumns,
                   std::min(gemm.N, last * kUnitColumns));
      begin += last - first;
    }
  });
}

}  // namespace

bool UsesBf16Gemm(const at::Tensor& weight) {
  return weight.scalar_type() == at::kBFloat16 && ComputeDevice(weight) == at::kCPU && HasBf16Gemm();
}

at::Tensor WideBf16Product(const at::Tensor& input_TK, const at::Tensor& weight_NK) {
  QUARTET_CHECK(UsesBf16Gemm(weight_NK) && input_TK.scalar_type() == at::kBFloat16 &&
                input_TK.size(1) == weight_NK.size(1))
      << input_TK.toString() << " times " << weight_NK.toString();
  const at::Tensor input = input_TK.contiguous(), weight = weight_NK.contiguous();
  const at::Tensor product = at::empty({input.size(0), weight.size(0)}, input.options().dtype(at::kFloat));
  if (product.is_meta() || product.numel() == 0) return product;
  Bf16Gemm gemm;
  gemm.M = input.size(0);
  gemm.N = weight.size(0);
  gemm.K = input.size(1);
  gemm.a = static_cast<const uint16_t*>(input.const_data_ptr());
  gemm.a_stride = gemm.K;
  gemm.b = static_cast<const uint16_t*>(weight.const_data_ptr());
  gemm.c_fp32 = product.mutable_data_ptr<float>();
  gemm.c_stride = gemm.N;
  Multiply(gemm);
  return product;
}

}  // namespace quartet
