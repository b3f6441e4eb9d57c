// Cores, NUMA nodes and GPUs of a host. LibTorch-free.
#pragma once

#include <string>
#include <vector>

namespace quartet {

struct HostTopology {
  std::vector<std::vector<int>> numa_cores;  // cores that this process may use, by NUMA node; ascending
  // The NUMA node of each GPU, in the order of their PCI addresses (CUDA_DEVICE_ORDER=PCI_BUS_ID); -1: not known.
  std::vector<int> gpu_numa;
  std::vector<std::string> gpu_addresses;  // "0000:3b:00.0", in the same order; none where they are not known

  // Of all NUMA nodes.
  std::vector<int> cores() const;
};

// This host's. `root` is put before /sys and /proc, for tests.
HostTopology ReadTopology(const std::string& root = "");

// One of `cores` cores and `gpus` GPUs on `numa_nodes` NUMA nodes, which have them in equal parts and in order.
HostTopology EvenTopology(int cores, int numa_nodes, int gpus);

// Part `index` of `parts` of `cores`, in order and as even as it goes; all of them where there are fewer than parts.
std::vector<int> PartOf(const std::vector<int>& cores, int index, int parts);

// "0-3,8" and back; nothing of other texts.
std::string FormatCores(const std::vector<int>& cores);
std::vector<int> ParseCores(const std::string& text);

}  // namespace quartet
