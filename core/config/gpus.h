// What known GPUs have and do. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quartet {

struct Gpu {
  const char* name;
  // That CUDA gives as the device's total.
  int64_t memory_bytes;
  // At most, in a second: floating point operations of dense products in bf16 and fp32 (not TF32), and bytes from and
  // to the GPU's memory.
  double bf16_flops;
  double fp32_flops;
  double bytes_per_second;
};

const std::vector<Gpu>& KnownGpus();
// "A100-40G, ...".
std::string KnownGpuNames();

// By its name, or what stands before its memory where there is one size ("H200"). Null: not known.
const Gpu* FindGpu(std::string_view name);

}  // namespace quartet
