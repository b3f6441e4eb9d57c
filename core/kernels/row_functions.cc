#include "core/kernels/row_functions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>

#include "core/base/division.h"
#include "core/hardware/meta_device.h"
#include "core/hardware/parallel.h"
#include "core/kernels/cpu/elements.h"
#include "core/kernels/cpu/row_kernels.h"
#include "core/kernels/cuda/cuda_paged_attention.h"
#include "core/kernels/cuda/present_stream.h"
#include "core/kernels/cuda/row_kernels.h"
#include "core/kernels/need_gradients.h"

namespace quartet {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elements that are worth another thread.
constexpr int64_t kElementsPerTask = 1 << 12;
// Gradients of a norm's weight are summed over so many rows, then over these sums: in the same order for any number of
// threads.
constexpr int64_t kRowsPerSum = 64;

bool ByKernels(const at::Tensor& x) {
  const at::DeviceType device = ComputeDevice(x);
  return (device == at::kCPU || device == at::kCUDA) &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

RowElement ElementOf(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? RowElement::kFloat : RowElement::kBf16;
}

constexpr char kRows[] = "a decoder's rows";

// Calls run(Element{}) with the type of elements as kernels know it.
template <typename Run>
void ForType(const at::Tensor& x, const Run& run) {
  if (x.scalar_type() == at::kFloat) {
    run(float{});
  } else {
    run(uint16_t{});
  }
}

// run(begin, end) for parts of `count` things of `size` elements each.
template <typename Run>
void InParallel(int64_t count, int64_t size, const Run& run) {
  at::parallel_for(0, count, std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, size)), run);
}

// `inverse_rms` [rows], or undefined where it is not wanted.
at::Tensor RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& inverse_rms) {
  at::Tensor out = at::empty_like(x);
  if (x.is_meta()) return out;
  const int64_t size = x.size(-1), rows = x.numel() / size;
  float* inverses = inverse_rms.defined() ? MutableElements<float>(inverse_rms) : nullptr;
  if (x.is_cuda()) {
    StartOn(x.device(), kRows, [&](void* stream) {
      return LaunchRmsNorm(ElementOf(x), x.const_data_ptr(), weight.const_data_ptr(), eps, rows, size,
                           out.mutable_data_ptr(), inverses, stream);
    });
    return out;
  }
  ForType(x, [&](auto element) {
    using Element = decltype(element);
    InParallel(rows, size, [&](int64_t begin, int64_t end) {
      RmsNormRows(Elements<Element>(x) + begin * size, Elements<Element>(weight), eps, end - begin, size,
                  MutableElements<Element>(out) + begin * size, inverses == nullptr ? nullptr : inverses + begin);
    });
  });
  return out;
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight, double eps) {
    const at::Tensor x = hidden.contiguous();
    const at::Tensor inverse_rms = at::empty({x.numel() / x.size(-1)}, x.options().dtype(at::kFloat));
    context->save_for_backward({x, weight, inverse_rms});
    return RmsNormForward(x, weight, eps, inverse_rms);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse_rms = saved[2];
    const at::Tensor gradient = gradients[0].contiguous();
    const int64_t size = x.size(-1), rows = x.numel() / size;
    const bool on_gpu = ComputeDevice(x) == at::kCUDA;
    const int64_t rows_per_sum = on_gpu ? RmsNormRowsPerSum(size) : kRowsPerSum;
    const int64_t parts = on_gpu && rows == 0 ? 0 : std::max<int64_t>(1, CeilDivide(rows, rows_per_sum));
    at::Tensor x_gradient = at::empty_like(x), sums, weight_gradient;
    if (context->needs_input_grad(1)) sums = at::empty({parts, size}, inverse_rms.options());
    if (on_gpu) {
      if (!x.is_meta()) {
        StartOn(x.device(), kRows, [&](void* stream) {
          return LaunchRmsNormGradient(ElementOf(x), x.const_data_ptr(), weight.const_data_ptr(),
                                       Elements<float>(inverse_rms), gradient.const_data_ptr(), rows, size,
                                       x_gradient.mutable_data_ptr(),
                                       sums.defined() ? MutableElements<float>(sums) : nullptr, stream);
        });
      }
      if (sums.defined()) weight_gradient = at::sum(sums, 0).to(weight.scalar_type());
      return {x_gradient, weight_gradient, at::Tensor()};
    }
    if (!x.is_meta()) {
      ForType(x, [&](auto element) {
        using Element = decltype(element);
        InParallel(parts, kRowsPerSum * size, [&](int64_t begin, int64_t end) {
          for (int64_t part = begin; part < end; ++part) {
            const int64_t first = part * kRowsPerSum, count = std::min(kRowsPerSum, rows - first);
            RmsNormRowsGradient(Elements<Element>(x) + first * size, Elements<Element>(weight),
                                Elements<float>(inverse_rms) + first, Elements<Element>(gradient) + first * size, count,
                                size, MutableElements<Element>(x_gradient) + first * size,
                                sums.defined() ? MutableElements<float>(sums) + part * size : nullptr);
          }
        });
      });
    }
    if (sums.defined()) {
      if (!x.is_meta()) AddRowsToFirst(parts, size, MutableElements<float>(sums));
      weight_gradient = sums.select(0, 0).to(weight.scalar_type());
    }
    return {x_gradient, weight_gradient, at::Tensor()};
  }

 private:
  static void AddRowsToFirst(int64_t rows, int64_t size, float* sums) {
    for (int64_t r = 1; r < rows; ++r) {
      for (int64_t i = 0; i < size; ++i) sums[i] += sums[r * size + i];
    }
  }
};

at::Tensor Rotated(const at::Tensor& x_THd, const at::Tensor& cos_Td, const at::Tensor& sin_Td, bool back) {
  const bool as_it_is = ComputeDevice(x_THd) == at::kCUDA && HasHeadsEndToEnd(x_THd);
  const at::Tensor x = as_it_is ? x_THd : x_THd.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  if (x.is_meta()) return out;
  const int64_t T = x.size(0), H = x.size(1), d = x.size(2);
  if (x.is_cuda()) {
    StartOn(x.device(), kRows, [&](void* stream) {
      return LaunchRotate(ElementOf(x), x.const_data_ptr(), x.stride(0), Elements<float>(cos_Td),
                          Elements<float>(sin_Td), d, back, T, H, d, out.mutable_data_ptr(), stream);
    });
    return out;
  }
  ForType(x, [&](auto element) {
    using Element = decltype(element);
    InParallel(T, H * d, [&](int64_t begin, int64_t end) {
      RotateRows(Elements<Element>(x) + begin * H * d, Elements<float>(cos_Td) + begin * d,
                 Elements<float>(sin_Td) + begin * d, d, back, end - begin, H, d,
                 MutableElements<Element>(out) + begin * H * d);
    });
  });
  return out;
}

class RotateFunction : public torch::autograd::Function<RotateFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_THd, const at::Tensor& cos_Td,
                            const at::Tensor& sin_Td) {
    context->save_for_backward({cos_Td, sin_Td});
    return Rotated(x_THd, cos_Td, sin_Td, /*back=*/false);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    return {Rotated(gradients[0], saved[0], saved[1], /*back=*/true), at::Tensor(), at::Tensor()};
  }
};

// Contiguous, or on a GPU parts of rows of one length.
at::Tensor SwiGluForward(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  if (gate.is_meta()) return out;
  if (gate.is_cuda()) {
    StartOn(gate.device(), kRows, [&](void* stream) {
      return LaunchSwiGlu(ElementOf(gate), gate.const_data_ptr(), up.const_data_ptr(), gate.stride(0), gate.size(0),
                          gate.size(1), out.mutable_data_ptr(), stream);
    });
    return out;
  }
  ForType(gate, [&](auto element) {
    using Element = decltype(element);
    InParallel(gate.numel(), 1, [&](int64_t begin, int64_t end) {
      SwiGluRow(Elements<Element>(gate) + begin, Elements<Element>(up) + begin, end - begin,
                MutableElements<Element>(out) + begin);
    });
  });
  return out;
}

class SwiGluFunction : public torch::autograd::Function<SwiGluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return SwiGluForward(gate, up);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const at::Tensor gradient = gradients[0].contiguous();
    at::Tensor gate_gradient = at::empty_like(gate), up_gradient = at::empty_like(up);
    if (gate.is_cuda()) {
      StartOn(gate.device(), kRows, [&](void* stream) {
        return LaunchSwiGluGradient(ElementOf(gate), gate.const_data_ptr(), up.const_data_ptr(),
                                    gradient.const_data_ptr(), gate.numel(), gate_gradient.mutable_data_ptr(),
                                    up_gradient.mutable_data_ptr(), stream);
      });
    } else if (!gate.is_meta()) {
      ForType(gate, [&](auto element) {
        using Element = decltype(element);
        InParallel(gate.numel(), 1, [&](int64_t begin, int64_t end) {
          SwiGluRowGradient(Elements<Element>(gate) + begin, Elements<Element>(up) + begin,
                            Elements<Element>(gradient) + begin, end - begin,
                            MutableElements<Element>(gate_gradient) + begin,
                            MutableElements<Element>(up_gradient) + begin);
        });
      });
    }
    return {gate_gradient, up_gradient};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& hidden_TD, const at::Tensor& weight_D, double eps) {
  if (!ByKernels(hidden_TD) || weight_D.scalar_type() != hidden_TD.scalar_type()) {
    const at::Tensor x = hidden_TD.to(WideType(hidden_TD.scalar_type()));
    const at::Tensor scale = at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
    return weight_D * (x * scale).to(hidden_TD.scalar_type());
  }
  if (NeedGradients(hidden_TD, weight_D)) return RmsNormFunction::apply(hidden_TD, weight_D.contiguous(), eps);
  return RmsNormForward(hidden_TD.contiguous(), weight_D.contiguous(), eps, /*inverse_rms=*/{});
}

at::Tensor Rotate(const at::Tensor& x_THd, const RotaryTable& rotary) {
  if (!ByKernels(x_THd)) {
    const int64_t half = x_THd.size(2) / 2;
    const at::Tensor x = x_THd.to(WideType(x_THd.scalar_type()));
    const at::Tensor turned = at::cat({x.slice(2, half).neg(), x.slice(2, 0, half)}, 2);
    return at::addcmul(x * rotary.cos_Td.unsqueeze(1), turned, rotary.sin_Td.unsqueeze(1)).to(x_THd.scalar_type());
  }
  const at::Tensor cos_Td = rotary.cos_Td.contiguous(), sin_Td = rotary.sin_Td.contiguous();
  if (NeedGradients(x_THd)) return RotateFunction::apply(x_THd, cos_Td, sin_Td);
  return Rotated(x_THd, cos_Td, sin_Td, /*back=*/false);
}

at::Tensor SwiGlu(at::Tensor gate_TF, at::Tensor up_TF) {
  if (!ByKernels(gate_TF) || up_TF.scalar_type() != gate_TF.scalar_type()) {
    gate_TF = at::silu(gate_TF);
    return gate_TF * up_TF;
  }
  const bool rows_alike = ComputeDevice(gate_TF) == at::kCUDA && !NeedGradients(gate_TF, up_TF) &&
                          gate_TF.stride(1) == 1 && gate_TF.strides() == up_TF.strides();
  if (rows_alike) return SwiGluForward(gate_TF, up_TF);
  gate_TF = gate_TF.contiguous();
  up_TF = up_TF.contiguous();
  if (NeedGradients(gate_TF, up_TF)) return SwiGluFunction::apply(gate_TF, up_TF);
  return SwiGluForward(gate_TF, up_TF);
}

}  // namespace quartet
