#pragma once

#include <c10/core/GradMode.h>

namespace quartet {

// Whether autograd is to record what is computed of `inputs`, tensors of which some may be undefined.
template <typename... Tensors>
bool NeedGradients(const Tensors&... inputs) {
  return c10::GradMode::is_enabled() && ((inputs.defined() && inputs.requires_grad()) || ...);
}

}  // namespace quartet
