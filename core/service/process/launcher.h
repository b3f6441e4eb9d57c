// The program a user starts for a service: it starts the service's ranks on this host and watches them.
#pragma once

#include <string>
#include <vector>

namespace quartet {

struct LauncherOptions {
  std::string service;  // "rollout", ...
  std::string summary;  // what the service does, one sentence, for --help
};

// Parses flags, starts N processes of the program `rank` beside this one, and waits. Where RANK and WORLD_SIZE
// (torchrun) or SLURM_PROCID and SLURM_NTASKS (Slurm) are set, becomes that rank instead.
//
// When a rank ends by itself or is killed, all others are ended and the exit code is 1. SIGINT and SIGTERM end the
// ranks, whether this process gets them or one of the ranks, and the exit code is 0. No rank outlives this process.
//
// By kRankCores the environment may say which cores each rank has to itself, by rank: "0-3;4-7".
int LauncherMain(int argc, char** argv, const LauncherOptions& options);
inline constexpr char kRankCores[] = "QUARTET_RANK_CORES";
// To ranks that Slurm or torchrun starts it may say which GPUs the service has on each of its nodes (SLURM_NODEID,
// GROUP_RANK), counted among those that CUDA_VISIBLE_DEVICES names there: "0,1;2,3".
inline constexpr char kNodeGpus[] = "QUARTET_NODE_GPUS";

// Names of the environment variables that make a program one rank of several. To be removed from the environment of a
// service that is started with ranks of its own.
const std::vector<std::string>& RankEnvironmentNames();

}  // namespace quartet
