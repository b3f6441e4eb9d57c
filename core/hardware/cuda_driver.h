// What NVIDIA's driver says, asked through its library where that is there. LibTorch-free.
#pragma once

#include <string>
#include <vector>

namespace quartet {

// The PCI address of each GPU that the driver shows to this process, "0000:3b:00.0", in the order in which the process
// counts them: within CUDA_VISIBLE_DEVICES, in CUDA_DEVICE_ORDER; "" where it is not told. None where there is no
// driver. `library` is for tests.
std::vector<std::string> VisibleGpus(const std::string& library = "libcuda.so.1");

}  // namespace quartet
