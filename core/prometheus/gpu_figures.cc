#include "core/prometheus/gpu_figures.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

// What NVML's header declares; its interface does not change (docs.nvidia.com/deploy/nvml-api).
using Device = struct nvmlDevice_st*;
struct Utilization {
  unsigned gpu, memory;  // percent of the last sample period
};
struct Memory {
  unsigned long long total, free, used;  // bytes  NOLINT(google-runtime-int)
};
constexpr int kSuccess = 0;
constexpr int kGpuTemperature = 0;
constexpr unsigned kUuidBytes = 96;

class Nvml {
 public:
  // Null where the library is not there, is another, or finds no driver.
  static std::unique_ptr<Nvml> Open(const std::string& library) {
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // for good, as the driver's libraries are
    if (handle == nullptr) return nullptr;
    auto nvml = std::unique_ptr<Nvml>(new Nvml());
    int (*init)() = nullptr;
    const bool found = Find(handle, "nvmlInit_v2", &init) && Find(handle, "nvmlDeviceGetCount_v2", &nvml->count_) &&
                       Find(handle, "nvmlDeviceGetHandleByIndex_v2", &nvml->by_index_) &&
                       Find(handle, "nvmlDeviceGetUUID", &nvml->uuid_) &&
                       Find(handle, "nvmlDeviceGetUtilizationRates", &nvml->utilization_) &&
                       Find(handle, "nvmlDeviceGetMemoryInfo", &nvml->memory_) &&
                       Find(handle, "nvmlDeviceGetPowerUsage", &nvml->power_) &&
                       Find(handle, "nvmlDeviceGetTemperature", &nvml->temperature_);
    return found && init() == kSuccess ? std::move(nvml) : nullptr;
  }

  void AddFigures(MetricFamilies* families) const {
    unsigned count = 0;
    if (count_(&count) != kSuccess) return;
    for (unsigned i = 0; i < count; ++i) AddDevice(i, families);
  }

 private:
  template <typename Function>
  static bool Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
  }

  void AddDevice(unsigned index, MetricFamilies* families) const {
    Device device = nullptr;
    char uuid[kUuidBytes] = {};
    if (by_index_(index, &device) != kSuccess || uuid_(device, uuid, kUuidBytes) != kSuccess) return;
    const MetricLabels labels = {{"gpu", absl::StrCat(index)}, {"uuid", uuid}};
    const auto add = [&](const char* name, const char* help, double value) {
      AddFigure(prometheus::MetricType::Gauge, name, help, labels, value, families);
    };
    if (Utilization busy = {}; utilization_(device, &busy) == kSuccess) {
      add("quartet_gpu_utilization_ratio", "Share of the time in which the GPU ran a kernel.", busy.gpu / 100.0);
    }
    if (Memory memory = {}; memory_(device, &memory) == kSuccess) {
      add("quartet_gpu_memory_bytes", "Memory of the GPU.", static_cast<double>(memory.total));
      add("quartet_gpu_memory_used_bytes", "Memory in use on the GPU, whoever uses it.",
          static_cast<double>(memory.used));
    }
    if (unsigned milliwatts = 0; power_(device, &milliwatts) == kSuccess) {
      add("quartet_gpu_power_watts", "Power that the GPU draws.", milliwatts / 1e3);
    }
    if (unsigned celsius = 0; temperature_(device, kGpuTemperature, &celsius) == kSuccess) {
      add("quartet_gpu_temperature_celsius", "Temperature of the GPU.", celsius);
    }
  }

  int (*count_)(unsigned*) = nullptr;
  int (*by_index_)(unsigned, Device*) = nullptr;
  int (*uuid_)(Device, char*, unsigned) = nullptr;
  int (*utilization_)(Device, Utilization*) = nullptr;
  int (*memory_)(Device, Memory*) = nullptr;
  int (*power_)(Device, unsigned*) = nullptr;
  int (*temperature_)(Device, int, unsigned*) = nullptr;
};

}  // namespace

void AddGpuFigures(MetricFamilies* families, const std::string& library) {
  static std::mutex mutex;
  static auto& opened = *new std::map<std::string, std::unique_ptr<Nvml>>();
  const std::lock_guard lock(mutex);
  const auto [nvml, first] = opened.try_emplace(library);
  if (first) nvml->second = Nvml::Open(library);
  if (nvml->second != nullptr) nvml->second->AddFigures(families);
}

}  // namespace quartet
