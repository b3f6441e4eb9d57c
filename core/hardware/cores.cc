#include "core/hardware/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace quartet {
namespace {

// The first two words of a file; "" where there is none.
std::pair<std::string, std::string> Words(const std::string& path) {
  std::ifstream file(path);
  std::string first, second;
  file >> first >> second;
  return {first, second};
}

// 0: no limit.
int Cores(const std::string& quota, const std::string& period) {
  try {
    const double of = std::stod(quota), over = std::stod(period);
    return of > 0 && over > 0 ? std::max(1, static_cast<int>(std::ceil(of / over))) : 0;
  } catch (const std::exception&) {  // "max", or nothing
    return 0;
  }
}

}  // namespace

int CoresOfControlGroups(const std::string& groups, const std::string& root) {
  int least = 0;
  const auto take = [&least](int cores) {
    if (cores > 0) least = least == 0 ? cores : std::min(least, cores);
  };
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    // "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",cpu,") == std::string::npos) continue;
    // A limit of any group around it holds too. Inside a container the path may not be there: then its root is the
    // group's own.
    std::string path = line.substr(second + 1);
    while (true) {
      std::string folder = root;
      folder.append(v2 ? "" : "/cpu").append(path);
      if (v2) {
        const auto [quota, period] = Words(folder + "/cpu.max");
        take(Cores(quota, period));
      } else {
        take(Cores(Words(folder + "/cpu.cfs_quota_us").first, Words(folder + "/cpu.cfs_period_us").first));
      }
      if (path.empty() || path == "/") break;
      path = path.substr(0, path.rfind('/'));
    }
  }
  return least;
}

int AvailableCores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
  if (cores <= 0) cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::ifstream file("/proc/self/cgroup");
  std::stringstream groups;
  groups << file.rdbuf();
  const int allowed = CoresOfControlGroups(groups.str(), "/sys/fs/cgroup");
  return allowed > 0 ? std::min(cores, allowed) : cores;
}

int ThreadsOfRank(int said, int ranks_here) {
  const int sharing = std::getenv(kOwnCores) == nullptr ? std::max(1, ranks_here) : 1;
  return said > 0 ? said : std::max(1, AvailableCores() / sharing);
}

}  // namespace quartet
