// A driver with three GPUs, of which one does not say where it is.
#include <cstring>

extern "C" {

int cuInit(unsigned) { return 0; }

int cuDeviceGetCount(int* count) {
  *count = 3;
  return 0;
}

int cuDeviceGetPCIBusId(char* address, int size, int gpu) {
  if (gpu == 1) return 101;
  std::strncpy(address, gpu == 0 ? "0000:9B:00.0" : "0000:1B:00.0", static_cast<size_t>(size));
  return 0;
}

}  // extern "C"
