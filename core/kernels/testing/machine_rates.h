// What the machine could do at best: what benchmarks hold their figures against.
#pragma once

#include <c10/core/Device.h>

namespace quartet {

struct MachineRates {
  double bf16_flops = 0;  // a second, of products of bf16 matrices
  double fp32_flops = 0;  // of fp32 matrices
  double bytes = 0;       // a second, read from memory
};

// Takes a second or two, with LibTorch's threads; of a GPU with products and sums of LibTorch.
MachineRates MeasureMachineRates(at::Device device = at::Device(at::kCPU));

}  // namespace quartet
