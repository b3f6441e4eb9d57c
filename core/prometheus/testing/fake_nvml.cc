// The driver's library of a host with two GPUs, for tests: the second tells neither its power nor its utilization.

#include <cstdio>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3;
int devices[2];
bool initialized = false;

bool IsSecond(const void* device) { return device == &devices[1]; }

}  // namespace

extern "C" {

int nvmlInit_v2() {
  initialized = true;
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return initialized ? kSuccess : 1;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return kSuccess;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  std::snprintf(uuid, size, "GPU-%d", IsSecond(device) ? 1 : 0);
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* gpu_and_memory) {
  gpu_and_memory[0] = 97;
  gpu_and_memory[1] = 41;
  return IsSecond(device) ? kNotSupported : kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {  // NOLINT(google-runtime-int)
  const unsigned long long total = 80ull << 30;                                   // NOLINT(google-runtime-int)
  total_free_used[0] = total;
  total_free_used[2] = IsSecond(device) ? 1 : 60ull << 30;
  total_free_used[1] = total - total_free_used[2];
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 612'500;
  return IsSecond(device) ? kNotSupported : kSuccess;
}
int nvmlDeviceGetTemperature(void* device, int /*sensor*/, unsigned* celsius) {
  *celsius = IsSecond(device) ? 30 : 66;
  return kSuccess;
}

}  // extern "C"
