// What kernels are given of tensors. Element: float, or uint16_t, the bits of bf16.
#pragma once

#include <ATen/core/Tensor.h>

namespace quartet {

template <typename Element>
const Element* Elements(const at::Tensor& tensor) {
  return static_cast<const Element*>(tensor.const_data_ptr());
}

template <typename Element>
Element* MutableElements(const at::Tensor& tensor) {
  return static_cast<Element*>(tensor.mutable_data_ptr());
}

}  // namespace quartet
