#include "core/kernels/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/base/division.h"
#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/hardware/parallel.h"
#include "core/hardware/stealing_for.h"
#include "core/kernels/cpu/elements.h"
#include "core/kernels/cpu/products/gemm.h"
#include "core/kernels/need_gradients.h"

namespace quartet {
namespace {

// Units of `columns` columns in one call, for a thread that is worth waking: about 10 microseconds at 20 GiB/s or 200
// GFLOP/s.
int64_t UnitsAThread(int64_t rows, int64_t K, int64_t columns, int64_t element_bytes) {
  const int64_t bytes = columns * K * element_bytes, operations = 2 * rows * columns * K;
  return std::max<int64_t>(1, std::min(int64_t{200'000} / bytes, int64_t{2'000'000} / operations));
}

// The columns of several products, one product behind the other, in units.
template <typename Element>
class ColumnUnits {
 public:
  ColumnUnits(const std::vector<Gemm<Element>>& gemms, int64_t columns) : gemms_(gemms), columns_(columns) {
    for (const Gemm<Element>& gemm : gemms) count_ += Units(gemm);
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
      Multiply(*gemm, first_row, last_row, begin * columns_, std::min(gemm->N, behind),
               goes_on && behind < gemm->N ? behind : begin * columns_);
      begin = 0;
      end -= Units(*gemm++);
    }
  }

 private:
  int64_t Units(const Gemm<Element>& gemm) const { return CeilDivide(gemm.N, columns_); }

  const std::vector<Gemm<Element>>& gemms_;
  const int64_t columns_;
  int64_t count_ = 0;
};

// Into how many parts the rows of a product with `columns` columns are divided, each times all of them. Only where
// columns are too few for the threads, as each packs those that it works on, or where threads copy rows as well: then
// so that one has the least to pack and to copy.
template <typename Element>
int64_t PartsOfRows(const Gemm<Element>& gemm, int64_t columns) {
  constexpr int64_t kFewestRows = 64;
  const int64_t threads = at::get_num_threads(), most = std::clamp<int64_t>(gemm.M / kFewestRows, 1, threads);
  int64_t parts = std::clamp<int64_t>(threads * 2 * kPanelRows / columns, 1, most);
  if (!gemm.a_is_transposed) return parts;
  const auto moved = [&](int64_t count) { return gemm.M / count + columns * count / threads; };
  for (int64_t i = parts + 1; i <= most; ++i) {
    if (threads % i == 0 && moved(i) < moved(parts)) parts = i;
  }
  return parts;
}

// Products of one input by weights that are all packed, or all not.
template <typename Element>
void MultiplyAll(const std::vector<Gemm<Element>>& gemms) {
  const int64_t M = gemms.front().M, K = gemms.front().K;
  // Of very few rows, the wider a unit the better: threads are given as equal shares as can be.
  constexpr int64_t kWidestTaken = 3 * kPanelRows;
  if (gemms.front().b_is_packed && AreFewRows<Element>(M, K) && ColumnsOfFewRows<Element>(M) <= kWidestTaken) {
    const int64_t columns = ColumnsOfFewRows<Element>(M);
    const ColumnUnits units(gemms, columns);
    StealingFor(units.count(), UnitsAThread(M, K, columns, sizeof(Element)),
                [&](int64_t unit) { units.Compute(unit, unit + 1, 0, M, /*goes_on=*/true); });
    return;
  }
  constexpr int64_t kColumns = 2 * kPanelRows;  // two panels share each load of a row
  const ColumnUnits units(gemms, kColumns);
  const int64_t count = units.count(), parts = PartsOfRows(gemms.front(), count * kColumns);
  at::parallel_for(
      0, count * parts, UnitsAThread(M / parts, K, kColumns, sizeof(Element)), [&](int64_t begin, int64_t end) {
        while (begin < end) {
          const int64_t part = begin / count, stop = std::min(end, (part + 1) * count);
          units.Compute(begin - part * count, stop - part * count, M * part / parts, M * (part + 1) / parts,
                        /*goes_on=*/false);
          begin = stop;
        }
      });
}

bool IsPacked(const at::Tensor& weight) { return weight.dim() == 4; }
int64_t Inputs(const at::Tensor& weight) { return IsPacked(weight) ? weight.size(1) * weight.size(3) : weight.size(1); }
int64_t Outputs(const at::Tensor& weight) { return IsPacked(weight) ? weight.size(0) * kPanelRows : weight.size(0); }

template <typename Element>
constexpr at::ScalarType kTypeOf = std::is_same_v<Element, float> ? at::kFloat : at::kBFloat16;

// Of matrices of Elements; `type`: theirs, or fp32. `residual_TN` is undefined, or added to products of their type.
template <typename Element>
std::vector<at::Tensor> ProductsOf(const at::Tensor& input_TK, const std::vector<LinearWeights>& weights,
                                   at::ScalarType type, const at::Tensor& residual_TN) {
  const at::Tensor input = input_TK.contiguous();
  const at::Tensor residual = residual_TN.defined() ? residual_TN.contiguous() : at::Tensor();
  std::vector<at::Tensor> products, read = {input};
  std::vector<Gemm<Element>> gemms;
  for (const auto& [weight, bias_N] : weights) {
    QUARTET_CHECK(input.dim() == 2 && input.scalar_type() == kTypeOf<Element> &&
                  weight.scalar_type() == kTypeOf<Element> && input.size(1) == Inputs(weight))
        << input.sizes() << " " << input.toString() << " times " << weight.sizes() << " " << weight.toString();
    products.push_back(at::empty({input.size(0), Outputs(weight)}, input.options().dtype(type).requires_grad(false)));
    const at::Tensor& product = products.back();
    if (product.is_meta() || product.numel() == 0) continue;
    Gemm<Element>& gemm = gemms.emplace_back();
    gemm.M = product.size(0);
    gemm.N = product.size(1);
    gemm.K = input.size(1);
    gemm.a = Elements<Element>(input);
    gemm.a_stride = gemm.K;
    gemm.b = Elements<Element>(read.emplace_back(weight.contiguous()));
    gemm.b_stride = gemm.K;
    gemm.b_is_packed = IsPacked(weight);
    if (type == kTypeOf<Element>) {
      gemm.c = MutableElements<Element>(product);
    } else {
      gemm.c_fp32 = MutableElements<float>(product);
    }
    gemm.c_stride = gemm.N;
    if (residual.defined()) {
      QUARTET_CHECK(residual.sizes() == product.sizes() && residual.scalar_type() == type)
          << residual.toString() << " " << residual.sizes() << " added to " << product.sizes();
      gemm.residual = Elements<Element>(residual);
    }
    if (!bias_N.defined()) continue;
    QUARTET_CHECK(bias_N.scalar_type() == kTypeOf<Element> && bias_N.numel() == gemm.N) << bias_N.sizes();
    gemm.bias = Elements<Element>(read.emplace_back(bias_N.contiguous()));
  }
  if (!gemms.empty()) MultiplyAll(gemms);
  return products;
}

// For weights for which UsesGemm holds.
std::vector<at::Tensor> Products(const at::Tensor& input_TK, const std::vector<LinearWeights>& weights,
                                 at::ScalarType type, const at::Tensor& residual_TN = {}) {
  return input_TK.scalar_type() == at::kFloat ? ProductsOf<float>(input_TK, weights, type, residual_TN)
                                              : ProductsOf<uint16_t>(input_TK, weights, type, residual_TN);
}

at::Tensor Product(const at::Tensor& input_TK, const at::Tensor& weight, const at::Tensor& bias_N,
                   at::ScalarType type) {
  return Products(input_TK, {{weight, bias_N}}, type).front();
}

int64_t InputsOfStep(const at::Tensor& weight) {
  return weight.scalar_type() == at::kFloat ? kStepInputs<float> : kStepInputs<uint16_t>;
}

template <typename Element>
void PackPanels(const at::Tensor& weight_NK) {
  const int64_t K = weight_NK.size(1), panels = weight_NK.size(0) / kPanelRows;
  auto* elements = MutableElements<Element>(weight_NK);
  at::parallel_for(0, panels, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    std::vector<Element> packed(PanelNumel<Element>(K));  // a panel takes the place of its sixteen rows
    for (int64_t panel = begin; panel < end; ++panel) {
      Element* rows = elements + panel * PanelNumel<Element>(K);
      PackPanel(rows, kPanelRows, K, K, packed.data());
      std::copy(packed.begin(), packed.end(), rows);
    }
  });
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

bool HasOwnGradientProducts(const at::Tensor& factor) {
  return UsesGemm(factor) && (factor.scalar_type() == at::kFloat || !LibTorchHasBf16Products());
}

bool HasDenseRowsOrColumns(const at::Tensor& matrix) { return matrix.stride(1) == 1 || matrix.stride(0) == 1; }

template <typename Element>
void MultiplyGradients(const at::Tensor& a_MK, const at::Tensor& b_KN, bool adds, at::Tensor* product_MN) {
  const at::Tensor& product = *product_MN;
  QUARTET_CHECK(a_MK.dim() == 2 && b_KN.dim() == 2 && a_MK.size(1) == b_KN.size(0) &&
                b_KN.scalar_type() == kTypeOf<Element>)
      << a_MK.sizes() << " times " << b_KN.toString() << " " << b_KN.sizes();
  QUARTET_CHECK(product.dim() == 2 && product.size(0) == a_MK.size(0) && product.size(1) == b_KN.size(1) &&
                product.scalar_type() == kTypeOf<Element> && product.stride(1) == 1)
      << product.toString() << " " << product.sizes() << " for a product of " << a_MK.sizes() << " by " << b_KN.sizes();
  const at::Tensor a = HasDenseRowsOrColumns(a_MK) ? a_MK : a_MK.contiguous();
  const at::Tensor b = HasDenseRowsOrColumns(b_KN) ? b_KN : b_KN.contiguous();
  if (product.is_meta() || product.numel() == 0) return;
  Gemm<Element> gemm;
  gemm.M = a.size(0);
  gemm.N = b.size(1);
  gemm.K = a.size(1);
  gemm.a = Elements<Element>(a);
  gemm.a_is_transposed = a.stride(1) != 1;
  gemm.a_stride = gemm.a_is_transposed ? a.stride(1) : a.stride(0);
  gemm.b = Elements<Element>(b);
  gemm.b_is_transposed = b.stride(1) == 1;
  gemm.b_stride = gemm.b_is_transposed ? b.stride(0) : b.stride(1);
  gemm.c = MutableElements<Element>(product);
  gemm.c_stride = product.stride(0);
  if constexpr (std::is_same_v<Element, float>) {
    if (adds) {
      gemm.first_sums = gemm.c;
      gemm.first_stride = gemm.c_stride;
    }
  }
  MultiplyAll<Element>({gemm});
}

// Gradients are LibTorch's where it can make them: they need not have the same bits in trainer and rollout.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input_TK,
                            const at::Tensor& weight_NK, const std::optional<at::Tensor>& bias_N) {
    context->save_for_backward({input_TK, weight_NK});
    context->saved_data["has_bias"] = bias_N.has_value();
    return Product(input_TK, weight_NK, bias_N.value_or(at::Tensor()), weight_NK.scalar_type());
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

bool UsesGemm(const at::Tensor& weight) {
  const at::ScalarType type = weight.scalar_type();
  return (type == at::kBFloat16 || (type == at::kFloat && IsFp32GemmFast())) && ComputeDevice(weight) == at::kCPU;
}

at::Tensor Linear(const at::Tensor& input_TK, const at::Tensor& weight, const at::Tensor& bias_N) {
  const std::optional<at::Tensor> bias = bias_N.defined() ? std::optional<at::Tensor>(bias_N) : std::nullopt;
  if (!UsesGemm(weight)) return at::linear(input_TK, weight, bias);
  if (!NeedGradients(input_TK, weight, bias_N)) return Product(input_TK, weight, bias_N, weight.scalar_type());
  QUARTET_CHECK(!IsPacked(weight)) << "a packed weight has no gradient";
  return LinearFunction::apply(input_TK, weight, bias);
}

at::Tensor LinearPlus(const at::Tensor& input_TK, const at::Tensor& weight, const at::Tensor& bias_N,
                      const at::Tensor& residual_TN) {
  // No gradient needs the product itself.
  if (!UsesGemm(weight) || NeedGradients(input_TK, weight, bias_N, residual_TN)) {
    return Linear(input_TK, weight, bias_N).add_(residual_TN);
  }
  return Products(input_TK, {{weight, bias_N}}, weight.scalar_type(), residual_TN).front();
}

std::vector<at::Tensor> Linears(const at::Tensor& input_TK, const std::vector<LinearWeights>& weights) {
  const bool ours = std::all_of(weights.begin(), weights.end(), [&](const LinearWeights& w) {
    return UsesGemm(w.weight) && !NeedGradients(input_TK, w.weight, w.bias_N);
  });
  if (ours) return Products(input_TK, weights, input_TK.scalar_type());
  std::vector<at::Tensor> products;
  for (const auto& [weight, bias_N] : weights) products.push_back(Linear(input_TK, weight, bias_N));
  return products;
}

at::Tensor WideProduct(const at::Tensor& input_TK, const at::Tensor& weight) {
  const c10::NoGradGuard no_grad;
  if (UsesGemm(weight)) return Product(input_TK, weight, at::Tensor(), at::kFloat);
  if (!HasWideProducts(weight)) return at::mm(input_TK, weight.t());
  at::Tensor product = at::empty({input_TK.size(0), weight.size(0)}, input_TK.options().dtype(at::kFloat));
  WideProductInto(input_TK, weight.t(), /*adds=*/false, &product);
  return product;
}

at::Tensor GradientProduct(const at::Tensor& a_MK, const at::Tensor& b_KN) {
  at::Tensor product = at::empty({a_MK.size(0), b_KN.size(1)}, a_MK.options().requires_grad(false));
  GradientProductInto(a_MK, b_KN, &product);
  return product;
}

void GradientProductInto(const at::Tensor& a_MK, const at::Tensor& b_KN, at::Tensor* product_MN) {
  const c10::NoGradGuard no_grad;
  if (!HasOwnGradientProducts(a_MK)) {
    at::mm_out(*product_MN, a_MK, b_KN);
  } else if (a_MK.numel() == 0) {
    product_MN->zero_();
  } else if (a_MK.scalar_type() == at::kFloat) {
    MultiplyGradients<float>(a_MK, b_KN, /*adds=*/false, product_MN);
  } else {
    MultiplyGradients<uint16_t>(a_MK, b_KN, /*adds=*/false, product_MN);
  }
}

void AddGradientProduct(const at::Tensor& a_MK, const at::Tensor& b_KN, at::Tensor* sum_MN) {
  const c10::NoGradGuard no_grad;
  QUARTET_CHECK(a_MK.scalar_type() != at::kBFloat16);
  if (!HasOwnGradientProducts(a_MK)) {
    sum_MN->addmm_(a_MK, b_KN);
  } else if (a_MK.numel() != 0) {
    MultiplyGradients<float>(a_MK, b_KN, /*adds=*/true, sum_MN);
  }
}

bool HasWideProducts(const at::Tensor& factor) {
  return factor.scalar_type() == at::kBFloat16 && ComputeDevice(factor) == at::kCUDA;
}

void WideProductInto(const at::Tensor& a_MK, const at::Tensor& b_KN, bool adds, at::Tensor* product_MN) {
  const c10::NoGradGuard no_grad;
  QUARTET_CHECK(HasWideProducts(a_MK) && product_MN->scalar_type() == at::kFloat);
  if (a_MK.is_meta()) return;
  if (adds) {
    at::addmm_out(*product_MN, *product_MN, a_MK, b_KN, at::kFloat);
  } else {
    at::mm_out(*product_MN, a_MK, b_KN, at::kFloat);
  }
}

bool CanPack(const at::Tensor& weight_NK) {
  return UsesGemm(weight_NK) && weight_NK.dim() == 2 && weight_NK.size(0) % kPanelRows == 0 &&
         weight_NK.size(1) % InputsOfStep(weight_NK) == 0;
}

at::Tensor PackInPlace(const at::Tensor& weight_NK) {
  QUARTET_CHECK(CanPack(weight_NK) && weight_NK.is_contiguous()) << weight_NK.sizes();
  if (weight_NK.is_meta()) {
  } else if (weight_NK.scalar_type() == at::kFloat) {
    PackPanels<float>(weight_NK);
  } else {
    PackPanels<uint16_t>(weight_NK);
  }
  return AsPacked(weight_NK);
}

at::Tensor AsPacked(const at::Tensor& rows_NK) {
  const int64_t inputs = InputsOfStep(rows_NK);
  return rows_NK.view({rows_NK.size(0) / kPanelRows, rows_NK.size(1) / inputs, kPanelRows, inputs});
}

at::Tensor PackedRows(const at::Tensor& packed, const at::Tensor& indices_T) {
  QUARTET_CHECK(IsPacked(packed) && packed.is_contiguous() && indices_T.scalar_type() == at::kLong) << packed.sizes();
  const int64_t T = indices_T.numel(), N = Outputs(packed), steps = packed.size(1);
  const at::Tensor rows = at::empty({T, Inputs(packed)}, packed.options());
  if (rows.is_meta()) return rows;
  const at::Tensor indices = indices_T.contiguous();
  const int64_t* index = indices.const_data_ptr<int64_t>();
  // A row's part of a step has 32 bits, whatever the type.
  const auto* from = Elements<uint32_t>(packed);
  auto* to = MutableElements<uint32_t>(rows);
  for (int64_t t = 0; t < T; ++t) {
    TORCH_CHECK(index[t] >= 0 && index[t] < N, "row ", index[t], " of a weight of ", N);
    const uint32_t* panel = from + index[t] / kPanelRows * kPanelRows * steps + index[t] % kPanelRows;
    for (int64_t step = 0; step < steps; ++step) to[t * steps + step] = panel[step * kPanelRows];
  }
  return rows;
}

}  // namespace quartet
