#include "core/kernels/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/hardware/parallel.h"
#include "core/hardware/stealing_for.h"
#include "core/kernels/cpu/bf16_gemm.h"
#include "core/kernels/need_gradients.h"

namespace quartet {
namespace {

// Units of `columns` columns in one call, for a thread that is worth waking: about 10 microseconds at 20 GiB/s or 200
// GFLOP/s.
int64_t UnitsAThread(int64_t rows, int64_t K, int64_t columns) {
  const int64_t bytes = columns * K * 2, operations = 2 * rows * columns * K;
  return std::max<int64_t>(1, std::min(int64_t{200'000} / bytes, int64_t{2'000'000} / operations));
}

// The columns of several products, one product behind the other, in units.
class ColumnUnits {
 public:
  ColumnUnits(const std::vector<Bf16Gemm>& gemms, int64_t columns) : gemms_(gemms), columns_(columns) {
    for (const Bf16Gemm& gemm : gemms) count_ += Units(gemm);
  }
  int64_t count() const { return count_; }

  // Computes units [begin, end) of rows [first_row, last_row). `goes_on`: with the units behind them, probably.
  void Compute(int64_t begin, int64_t end, int64_t first_row, int64_t last_row, bool goes_on) const {
    auto gemm = gemms_.begin();
    for (; begin >= Units(*gemm); ++gemm) {
      begin -= Units(*gemm);
      end -= Units(*gemm);
    }
    while (begin < end) {
      const int64_t last = std::min(Units(*gemm), end), behind = last * columns_;
      MultiplyBf16(*gemm, first_row, last_row, begin * columns_, std::min(gemm->N, behind),
                   goes_on && behind < gemm->N ? behind : begin * columns_);
      begin = 0;
      end -= Units(*gemm++);
    }
  }

 private:
  int64_t Units(const Bf16Gemm& gemm) const { return (gemm.N + columns_ - 1) / columns_; }

  const std::vector<Bf16Gemm>& gemms_;
  const int64_t columns_;
  int64_t count_ = 0;
};

// Products of one input by weights that are all packed, or all not.
void Multiply(const std::vector<Bf16Gemm>& gemms) {
  const int64_t M = gemms.front().M, K = gemms.front().K;
  // Of very few rows, the wider a unit the better: threads are given as equal shares as can be.
  constexpr int64_t kWidestTaken = 3 * kPanelRows;
  if (gemms.front().b_is_packed && AreFewRows(M, K) && ColumnsOfFewRows(M) <= kWidestTaken) {
    const ColumnUnits units(gemms, ColumnsOfFewRows(M));
    StealingFor(units.count(), UnitsAThread(M, K, ColumnsOfFewRows(M)),
                [&](int64_t unit) { units.Compute(unit, unit + 1, 0, M, /*goes_on=*/true); });
    return;
  }
  constexpr int64_t kColumns = 2 * kPanelRows;  // two panels share each load of a row
  const ColumnUnits units(gemms, kColumns);
  // Rows are divided too only where columns are too few: each thread packs the columns that it works on.
  constexpr int64_t kFewestRows = 64;
  const int64_t count = units.count();
  const int64_t parts = std::clamp<int64_t>(at::get_num_threads() / count, 1, std::max<int64_t>(1, M / kFewestRows));
  at::parallel_for(0, count * parts, UnitsAThread(M / parts, K, kColumns), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t part = begin / count, stop = std::min(end, (part + 1) * count);
      units.Compute(begin - part * count, stop - part * count, M * part / parts, M * (part + 1) / parts,
                    /*goes_on=*/false);
      begin = stop;
    }
  });
}

bool IsPacked(const at::Tensor& weight) { return weight.dim() == 4; }
int64_t Inputs(const at::Tensor& weight) { return IsPacked(weight) ? weight.size(1) * 2 : weight.size(1); }
int64_t Outputs(const at::Tensor& weight) { return IsPacked(weight) ? weight.size(0) * kPanelRows : weight.size(0); }

const uint16_t* Elements(const at::Tensor& tensor) { return static_cast<const uint16_t*>(tensor.const_data_ptr()); }

// Of bf16 matrices; `type` fp32 or bf16. `residual_TN` is undefined, or added to bf16 products.
std::vector<at::Tensor> Products(const at::Tensor& input_TK, const std::vector<LinearWeights>& weights,
                                 at::ScalarType type, const at::Tensor& residual_TN = {}) {
  const at::Tensor input = input_TK.contiguous();
  const at::Tensor residual = residual_TN.defined() ? residual_TN.contiguous() : at::Tensor();
  std::vector<at::Tensor> products, read = {input};
  std::vector<Bf16Gemm> gemms;
  for (const auto& [weight, bias_N] : weights) {
    QUARTET_CHECK(input.dim() == 2 && input.scalar_type() == at::kBFloat16 && input.size(1) == Inputs(weight))
        << input.sizes() << " " << input.toString() << " times " << weight.sizes();
    products.push_back(at::empty({input.size(0), Outputs(weight)}, input.options().dtype(type).requires_grad(false)));
    const at::Tensor& product = products.back();
    if (product.is_meta() || product.numel() == 0) continue;
    Bf16Gemm& gemm = gemms.emplace_back();
    gemm.M = product.size(0);
    gemm.N = product.size(1);
    gemm.K = input.size(1);
    gemm.a = Elements(input);
    gemm.a_stride = gemm.K;
    gemm.b = Elements(read.emplace_back(weight.contiguous()));
    gemm.b_stride = gemm.K;
    gemm.b_is_packed = IsPacked(weight);
    if (type == at::kFloat) {
      gemm.c_fp32 = product.mutable_data_ptr<float>();
    } else {
      gemm.c_bf16 = static_cast<uint16_t*>(product.mutable_data_ptr());
    }
    gemm.c_stride = gemm.N;
    if (residual.defined()) {
      QUARTET_CHECK(residual.sizes() == product.sizes() && residual.scalar_type() == type)
          << residual.toString() << " " << residual.sizes() << " added to " << product.sizes();
      gemm.residual = Elements(residual);
    }
    if (!bias_N.defined()) continue;
    QUARTET_CHECK(bias_N.scalar_type() == at::kBFloat16 && bias_N.numel() == gemm.N) << bias_N.sizes();
    gemm.bias = Elements(read.emplace_back(bias_N.contiguous()));
  }
  if (!gemms.empty()) Multiply(gemms);
  return products;
}

at::Tensor Product(const at::Tensor& input_TK, const at::Tensor& weight, const at::Tensor& bias_N,
                   at::ScalarType type) {
  return Products(input_TK, {{weight, bias_N}}, type).front();
}

// Whether LibTorch's products of bf16 on the CPU are taken: oneDNN's, by the CPU's instruction for them. Without it
// oneDNN widens whole matrices to memory that nobody counts, and without AVX-512 LibTorch's own loops take their place,
// slower by two orders of magnitude.
bool LibTorchHasBf16Products() {
#if defined(__x86_64__)
  return OthersHaveBf16Products();
#else
  return true;
#endif
}

bool HasDenseRowsOrColumns(const at::Tensor& matrix) { return matrix.stride(1) == 1 || matrix.stride(0) == 1; }

// Gradients are LibTorch's where it can make them: they need not have the same bits in trainer and rollout.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input_TK,
                            const at::Tensor& weight_NK, const std::optional<at::Tensor>& bias_N) {
    context->save_for_backward({input_TK, weight_NK});
    context->saved_data["has_bias"] = bias_N.has_value();
    return Product(input_TK, weight_NK, bias_N.value_or(at::Tensor()), at::kBFloat16);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& gradient_TN = gradients[0];
    torch::autograd::variable_list found(3);
    if (context->needs_input_grad(0)) found[0] = GradientProduct(gradient_TN, saved[1]);
    if (context->needs_input_grad(1)) found[1] = GradientProduct(gradient_TN.t(), saved[0]);
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) found[2] = gradient_TN.sum(0);
    return found;
  }
};

}  // namespace

bool UsesBf16Gemm(const at::Tensor& weight) {
  return weight.scalar_type() == at::kBFloat16 && ComputeDevice(weight) == at::kCPU;
}

at::Tensor Linear(const at::Tensor& input_TK, const at::Tensor& weight, const at::Tensor& bias_N) {
  const std::optional<at::Tensor> bias = bias_N.defined() ? std::optional<at::Tensor>(bias_N) : std::nullopt;
  if (!UsesBf16Gemm(weight)) return at::linear(input_TK, weight, bias);
  if (!NeedGradients(input_TK, weight, bias_N)) return Product(input_TK, weight, bias_N, at::kBFloat16);
  QUARTET_CHECK(!IsPacked(weight)) << "a packed weight has no gradient";
  return LinearFunction::apply(input_TK, weight, bias);
}

at::Tensor LinearPlus(const at::Tensor& input_TK, const at::Tensor& weight, const at::Tensor& bias_N,
                      const at::Tensor& residual_TN) {
  // No gradient needs the product itself.
  if (!UsesBf16Gemm(weight) || NeedGradients(input_TK, weight, bias_N, residual_TN)) {
    return Linear(input_TK, weight, bias_N).add_(residual_TN);
  }
  return Products(input_TK, {{weight, bias_N}}, at::kBFloat16, residual_TN).front();
}

std::vector<at::Tensor> Linears(const at::Tensor& input_TK, const std::vector<LinearWeights>& weights) {
  const bool ours = std::all_of(weights.begin(), weights.end(), [&](const LinearWeights& w) {
    return UsesBf16Gemm(w.weight) && !NeedGradients(input_TK, w.weight, w.bias_N);
  });
  if (ours) return Products(input_TK, weights, at::kBFloat16);
  std::vector<at::Tensor> products;
  for (const auto& [weight, bias_N] : weights) products.push_back(Linear(input_TK, weight, bias_N));
  return products;
}

at::Tensor WideProduct(const at::Tensor& input_TK, const at::Tensor& weight) {
  const c10::NoGradGuard no_grad;
  if (weight.scalar_type() != at::kBFloat16) return at::mm(input_TK, weight.t());
  if (UsesBf16Gemm(weight)) return Product(input_TK, weight, at::Tensor(), at::kFloat);
  // LibTorch's product of bf16 matrices comes out as bf16. The factors are widened instead, the weight some rows at a
  // time: more of them would only fill memory.
  constexpr int64_t kWideBytes = int64_t{16} << 20;
  const at::Tensor input = input_TK.to(at::kFloat);
  const int64_t N = weight.size(0);
  const int64_t step = std::max<int64_t>(1, kWideBytes / (weight.size(1) * static_cast<int64_t>(sizeof(float))));
  const at::Tensor product = at::empty({input.size(0), N}, input.options());
  for (int64_t begin = 0; begin < N; begin += step) {
    const int64_t end = std::min(N, begin + step);
    at::Tensor part = product.slice(1, begin, end);
    at::mm_out(part, input, weight.slice(0, begin, end).to(at::kFloat).t());
  }
  return product;
}

at::Tensor GradientProduct(const at::Tensor& a_MK, const at::Tensor& b_KN) {
  at::Tensor product = at::empty({a_MK.size(0), b_KN.size(1)}, a_MK.options().requires_grad(false));
  GradientProductInto(a_MK, b_KN, &product);
  return product;
}

void GradientProductInto(const at::Tensor& a_MK, const at::Tensor& b_KN, at::Tensor* product_MN) {
  const c10::NoGradGuard no_grad;
  at::Tensor& product = *product_MN;
  if (!UsesBf16Gemm(a_MK) || LibTorchHasBf16Products() || a_MK.numel() == 0) {
    at::mm_out(product, a_MK, b_KN);
    return;
  }
  QUARTET_CHECK(a_MK.dim() == 2 && b_KN.dim() == 2 && a_MK.size(1) == b_KN.size(0) &&
                b_KN.scalar_type() == at::kBFloat16)
      << a_MK.sizes() << " times " << b_KN.toString() << " " << b_KN.sizes();
  QUARTET_CHECK(product.dim() == 2 && product.size(0) == a_MK.size(0) && product.size(1) == b_KN.size(1) &&
                product.scalar_type() == at::kBFloat16 && product.stride(1) == 1)
      << product.toString() << " " << product.sizes() << " for a product of " << a_MK.sizes() << " by " << b_KN.sizes();
  const at::Tensor a = HasDenseRowsOrColumns(a_MK) ? a_MK : a_MK.contiguous();
  const at::Tensor b = HasDenseRowsOrColumns(b_KN) ? b_KN : b_KN.contiguous();
  if (product.is_meta() || product.numel() == 0) return;
  Bf16Gemm gemm;
  gemm.M = a.size(0);
  gemm.N = b.size(1);
  gemm.K = a.size(1);
  gemm.a = Elements(a);
  gemm.a_is_transposed = a.stride(1) != 1;
  gemm.a_stride = gemm.a_is_transposed ? a.stride(1) : a.stride(0);
  gemm.b = Elements(b);
  gemm.b_is_transposed = b.stride(1) == 1;
  gemm.b_stride = gemm.b_is_transposed ? b.stride(0) : b.stride(1);
  gemm.c_bf16 = static_cast<uint16_t*>(product.mutable_data_ptr());
  gemm.c_stride = product.stride(0);
  Multiply({gemm});
}

bool CanPack(const at::Tensor& weight_NK) {
  return UsesBf16Gemm(weight_NK) && weight_NK.dim() == 2 && weight_NK.size(0) % kPanelRows == 0 &&
         weight_NK.size(1) % 2 == 0;
}

at::Tensor PackInPlace(const at::Tensor& weight_NK) {
  QUARTET_CHECK(CanPack(weight_NK) && weight_NK.is_contiguous()) << weight_NK.sizes();
  const int64_t K = weight_NK.size(1), panels = weight_NK.size(0) / kPanelRows;
  if (!weight_NK.is_meta()) {
    auto* elements = static_cast<uint16_t*>(weight_NK.mutable_data_ptr());
    at::parallel_for(0, panels, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
      std::vector<uint16_t> packed(PanelNumel(K));  // a panel takes the place of its sixteen rows
      for (int64_t panel = begin; panel < end; ++panel) {
        uint16_t* rows = elements + panel * PanelNumel(K);
        PackPanel(rows, kPanelRows, K, K, packed.data());
        std::copy(packed.begin(), packed.end(), rows);
      }
    });
  }
  return weight_NK.view({panels, K / 2, kPanelRows, 2});
}

at::Tensor PackedRows(const at::Tensor& packed, const at::Tensor& indices_T) {
  QUARTET_CHECK(IsPacked(packed) && packed.is_contiguous() && indices_T.scalar_type() == at::kLong) << packed.sizes();
  const int64_t T = indices_T.numel(), K = Inputs(packed), N = Outputs(packed);
  const at::Tensor rows = at::empty({T, K}, packed.options());
  if (rows.is_meta()) return rows;
  const at::Tensor indices = indices_T.contiguous();
  const int64_t* index = indices.const_data_ptr<int64_t>();
  auto* to = static_cast<uint16_t*>(rows.mutable_data_ptr());
  for (int64_t t = 0; t < T; ++t) {
    TORCH_CHECK(index[t] >= 0 && index[t] < N, "row ", index[t], " of a weight of ", N);
    const uint16_t* from = Elements(packed) + index[t] / kPanelRows * PanelNumel(K) + index[t] % kPanelRows * 2;
    for (int64_t k = 0; k < K; k += 2) std::memcpy(to + t * K + k, from + k * kPanelRows, 2 * sizeof(uint16_t));
  }
  return rows;
}

}  // namespace quartet
