// Figures of this host's NVIDIA GPUs, from the driver's library (NVML), which is opened at run time.
#pragma once

#include <string>

#include "core/prometheus/families.h"

namespace quartet {

// Of each GPU, by `gpu` (its number in nvidia-smi) and `uuid`: quartet_gpu_utilization_ratio, quartet_gpu_memory_bytes
// and _used_bytes, quartet_gpu_power_watts, quartet_gpu_temperature_celsius; what a GPU does not tell is left out. None
// where the library is not there, as on a host without a driver. `library` is dlopen's name for it. Thread safe.
void AddGpuFigures(MetricFamilies* families, const std::string& library = "libnvidia-ml.so.1");

}  // namespace quartet
