// What memory known GPUs have for programs. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quartet {

// Bytes that CUDA gives as the total of the device named so ("A100-80G"); 0: not known.
int64_t GpuMemoryBytes(std::string_view gpu);

// The names.
std::vector<std::string> KnownGpus();

}  // namespace quartet
