// A run as a batch script of Slurm.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct SlurmOptions {
  // What the run is; of kRunPrograms.
  Program program = Program::kPpo;
  // Options of sbatch for the nodes of all services, such as "--partition=gpu".
  std::vector<std::string> sbatch;
  // The same of a node that the orchestrator has to itself; none: it runs on the first node of the services.
  std::vector<std::string> orchestrator_sbatch;
  // A run that fails is queued again until it has failed so many times without a new checkpoint between.
  int max_restarts = 3;
  // Whether hosts and links are looked at first (orchestrator/preflight): "on"; "off"; "only", and then nothing else is
  // done.
  std::string check = "on";
};

// What the launcher of a run on a cluster keeps in the run's folder, relative to it: the configuration as its programs
// read it, and for Slurm the script.
inline constexpr char kClusterConfig[] = "launch/run.textproto";
inline constexpr char kSlurmScript[] = "launch/job.sh";
// What the script and the orchestrator print.
inline constexpr char kSlurmLog[] = "logs/orchestrator.log";

// The text of kSlurmScript: a job whose components are the sets of services that share nodes, as PlaceRanks has them,
// one step a service, and the orchestrator. It begins the run of `config` (resolved; its run_dir is on a file system of
// all nodes, as `programs_folder` is), or goes on with it after its newest checkpoint: however often it is queued
// again. Services listen on ports of their own, or on those that services.<name>.listen says (`origins`).
//
// INVALID_ARGUMENT names what Slurm cannot be asked for.
absl::StatusOr<std::string> SlurmJobScript(const RunConfig& config, const ValueOrigins& origins,
                                           const std::string& programs_folder, const SlurmOptions& options);

}  // namespace quartet
