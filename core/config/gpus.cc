#include "core/config/gpus.h"

namespace quartet {
namespace {

constexpr int64_t GiB(double count) { return static_cast<int64_t>(count * (int64_t{1} << 30)); }

}  // namespace

const std::vector<Gpu>& KnownGpus() {
  // Memory: what LibTorch's and vLLM's messages print as a device's total, as users of other projects report them:
  // A100-40G in LianjiaTech/BELLE#137, A800-80G in hahnyuan/PB-LLM#3, H100-80G in huggingface/trl#2688. Rates: NVIDIA's
  // A100 datasheet (1758950) and H100 datasheet and whitepaper, of the SXM modules, without sparsity. An A800 is an
  // A100 with slower links.
  static const std::vector<Gpu> gpus = {
      {"A100-40G", GiB(39.45), 312e12, 19.5e12, 1555e9},
      {"A100-80G", GiB(79.33), 312e12, 19.5e12, 2039e9},
      {"A800-80G", GiB(79.33), 312e12, 19.5e12, 2039e9},
      {"H100-80G", GiB(79.10), 989.4e12, 66.9e12, 3350e9},
  };
  return gpus;
}

std::string KnownGpuNames() {
  std::string names;
  for (const Gpu& gpu : KnownGpus()) names.append(names.empty() ? "" : ", ").append(gpu.name);
  return names;
}

const Gpu* FindGpu(std::string_view name) {
  for (const Gpu& gpu : KnownGpus()) {
    if (name == gpu.name) return &gpu;
  }
  return nullptr;
}

}  // namespace quartet
