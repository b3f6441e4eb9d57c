#include "core/hardware/cuda_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>

namespace quartet {

std::vector<std::string> VisibleGpus(const std::string& library) {
  void* const driver = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return {};
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count_devices = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto address_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetPCIBusId"));
  int count = 0;
  if (init == nullptr || count_devices == nullptr || init(0) != 0 || count_devices(&count) != 0) return {};
  std::vector<std::string> addresses(static_cast<size_t>(count));
  // A device's handle is its number.
  for (int gpu = 0; gpu < count && address_of != nullptr; ++gpu) {
    char text[32] = "";
    if (address_of(text, sizeof(text), gpu) != 0) continue;
    std::string& address = addresses[static_cast<size_t>(gpu)] = text;
    // As the system's folders have it.
    std::transform(address.begin(), address.end(), address.begin(), [](unsigned char c) { return std::tolower(c); });
  }
  return addresses;
}

}  // namespace quartet
