#include "core/hardware/topology.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

namespace quartet {
namespace {

std::string FirstLine(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Entries of a folder, by name.
std::vector<std::filesystem::path> Entries(const std::string& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

int Number(const std::string& text) {
  try {
    return std::stoi(text);
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace

std::vector<int> HostTopology::cores() const {
  std::vector<int> all;
  for (const std::vector<int>& cores : numa_cores) all.insert(all.end(), cores.begin(), cores.end());
  std::sort(all.begin(), all.end());
  return all;
}

HostTopology ReadTopology(const std::string& root) {
  HostTopology topology;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return topology;
  const auto is_ours = [&set](int core) { return core >= 0 && core < CPU_SETSIZE && CPU_ISSET(core, &set); };
  std::map<int, std::vector<int>> nodes;
  for (const std::filesystem::path& entry : Entries(root + "/sys/devices/system/node")) {
    const std::string name = entry.filename().string();
    if (name.rfind("node", 0) != 0) continue;
    const int node = Number(name.substr(4));
    if (node < 0) continue;
    for (const int core : ParseCores(FirstLine(entry / "cpulist"))) {
      if (is_ours(core)) nodes[node].push_back(core);
    }
  }
  if (nodes.empty()) {  // a kernel without NUMA
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (is_ours(core)) nodes[0].push_back(core);
    }
  }
  for (auto& [node, cores] : nodes) {
    topology.numa_cores.resize(node + 1);
    topology.numa_cores[node] = std::move(cores);
  }
  // The driver has a folder for each GPU, named by its PCI address.
  for (const std::filesystem::path& gpu : Entries(root + "/proc/driver/nvidia/gpus")) {
    const std::string device = root + "/sys/bus/pci/devices/" + gpu.filename().string();
    topology.gpu_numa.push_back(Number(FirstLine(device + "/numa_node")));
    topology.gpu_addresses.push_back(gpu.filename().string());
  }
  return topology;
}

HostTopology EvenTopology(int cores, int numa_nodes, int gpus) {
  HostTopology topology;
  std::vector<int> all(std::max(0, cores));
  for (int core = 0; core < cores; ++core) all[core] = core;
  numa_nodes = std::max(1, numa_nodes);
  for (int node = 0; node < numa_nodes; ++node) topology.numa_cores.push_back(PartOf(all, node, numa_nodes));
  for (int gpu = 0; gpu < gpus; ++gpu) topology.gpu_numa.push_back(static_cast<int>(int64_t{gpu} * numa_nodes / gpus));
  return topology;
}

std::vector<int> PartOf(const std::vector<int>& cores, int index, int parts) {
  const auto size = static_cast<int64_t>(cores.size());
  if (size < parts) return cores;
  return {cores.begin() + size * index / parts, cores.begin() + size * (index + 1) / parts};
}

std::string FormatCores(const std::vector<int>& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t end = i + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cores[i]);
    if (end - i > 1) text += "-" + std::to_string(cores[end - 1]);
    i = end;
  }
  return text;
}

std::vector<int> ParseCores(const std::string& text) {
  std::vector<int> cores;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    const size_t dash = range.find('-');
    const int first = Number(range), last = dash == std::string::npos ? first : Number(range.substr(dash + 1));
    if (first < 0 || last < first || last >= (1 << 20)) return {};
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

}  // namespace quartet
