#include "core/config/gpu_memory.h"

namespace quartet {
namespace {

struct Gpu {
  const char* name;
  double gib;
};

// What LibTorch's and vLLM's messages print as a device's total, as users of other projects report them: A100-40G in
// LianjiaTech/BELLE#137, A800-80G in hahnyuan/PB-LLM#3, H100-80G in huggingface/trl#2688. An A800 is an A100 with
// slower links.
constexpr Gpu kGpus[] = {{"A100-40G", 39.45}, {"A100-80G", 79.33}, {"A800-80G", 79.33}, {"H100-80G", 79.10}};

}  // namespace

int64_t GpuMemoryBytes(std::string_view gpu) {
  for (const Gpu& known : kGpus) {
    if (gpu == known.name) return static_cast<int64_t>(known.gib * (int64_t{1} << 30));
  }
  return 0;
}

std::vector<std::string> KnownGpus() {
  std::vector<std::string> names;
  for (const Gpu& known : kGpus) names.emplace_back(known.name);
  return names;
}

}  // namespace quartet
