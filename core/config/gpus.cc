#include "core/config/gpus.h"

namespace quartet {
namespace {

constexpr int64_t GiB(double count) { return static_cast<int64_t>(count * (int64_t{1} << 30)); }

}  // namespace

const std::vector<Gpu>& KnownGpus() {
  // Memory: what LibTorch's, vLLM's and llama.cpp's messages print as a device's total, as users of other projects
  // report them, the least where these differ: A100-40G in LianjiaTech/BELLE#137, A800-80G in hahnyuan/PB-LLM#3,
  // H100-80G in huggingface/trl#2688, RTX4090-24G in Soul-AILab/SoulX-FlashTalk#5, L40S-48G in
  // stepfun-ai/Step-Video-T2V#8; of the others in many logs (H20-96G 97,285 MiB, A10-24G 22,731 MiB). Rates: NVIDIA's
  // datasheets and whitepapers of these, of the SXM modules where there are such, without sparsity, products of bf16
  // added up in fp32. An A800 is an A100 with slower links, a GH200 that of 96 GB of HBM3.
  static const std::vector<Gpu> gpus = {
      {"A100-40G", GiB(39.45), 312e12, 19.5e12, 1555e9},      {"A100-80G", GiB(79.33), 312e12, 19.5e12, 2039e9},
      {"A800-80G", GiB(79.33), 312e12, 19.5e12, 2039e9},      {"H100-80G", GiB(79.10), 989.4e12, 66.9e12, 3350e9},
      {"H200-141G", GiB(139.72), 989.4e12, 66.9e12, 4800e9},  {"GH200-96G", GiB(94.50), 989.4e12, 66.9e12, 4000e9},
      {"H20-96G", GiB(95.00), 148e12, 44e12, 4000e9},         {"B200-180G", GiB(178.35), 2250e12, 80e12, 8000e9},
      {"L40S-48G", GiB(44.42), 362.05e12, 91.6e12, 864e9},    {"A10-24G", GiB(22.19), 125e12, 31.2e12, 600e9},
      {"RTX4090-24G", GiB(23.52), 165.2e12, 82.6e12, 1008e9},
  };
  return gpus;
}

std::string KnownGpuNames() {
  std::string names;
  for (const Gpu& gpu : KnownGpus()) names.append(names.empty() ? "" : ", ").append(gpu.name);
  return names;
}

const Gpu* FindGpu(std::string_view name) {
  const Gpu* found = nullptr;
  for (const Gpu& gpu : KnownGpus()) {
    if (name == gpu.name) return &gpu;
    if (!std::string_view(gpu.name).starts_with(std::string(name) + "-")) continue;
    if (found != nullptr) return nullptr;  // of several sizes
    found = &gpu;
  }
  return found;
}

}  // namespace quartet
