// How many of the machine's cores this process may use. LibTorch-free.
#pragma once

#include <string>

namespace quartet {

// The cores of its affinity (taskset, cpusets, Slurm's binding), no more than its control groups let it use at once
// (containers' CPU limits), rounded up. At least 1.
int AvailableCores();

// Threads of one of `ranks_here` processes that share this host: `said`, where that is above 0, else an equal part of
// the cores; all of them where the environment says by kOwnCores that they are this process's own.
int ThreadsOfRank(int said, int ranks_here);
inline constexpr char kOwnCores[] = "QUARTET_OWN_CORES";

// What the control groups of a process allow, rounded up; 0: no limit. `groups` is the text of its /proc/PID/cgroup,
// `root` where control groups are mounted.
int CoresOfControlGroups(const std::string& groups, const std::string& root);

}  // namespace quartet
