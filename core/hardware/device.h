// The device that a rank computes on, by LibTorch's interfaces that all builds have.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "absl/status/status.h"

namespace quartet {

// Makes `device` the calling thread's, and ready: for each thread that computes on it, or makes process groups for it.
// INVALID_ARGUMENT where the build has no CUDA, FAILED_PRECONDITION where the host has no such device; nothing to do
// for others.
absl::Status EnterDevice(at::Device device);

// Of a CUDA device that has been entered. Bytes.
struct DeviceMemory {
  int64_t total = 0;
  int64_t tensors = 0;       // that LibTorch's allocator has given out
  int64_t peak_tensors = 0;  // at most, since ResetPeakTensors
  int64_t reserved = 0;      // that it has of the device: for tensors, and kept
  int64_t peak_reserved = 0;
  int64_t others = 0;  // in use, but not of that allocator: the context, libraries, other processes
};
DeviceMemory ReadDeviceMemory(at::Device device);
void ResetPeakTensors(at::Device device);

// Gives what LibTorch keeps of freed memory of CUDA devices back to them; nothing where none was used. Thread safe.
void GiveBackDeviceMemory();

}  // namespace quartet
