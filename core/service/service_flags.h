// The command line that a service's launcher and its ranks share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/command_line/command_line.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct ServiceFlags {
  std::string preset;
  std::string config;
  std::vector<std::string> overrides;  // --set
  std::optional<int> ranks;
  std::string listen;
  std::string address_file;
  std::string trace;
  bool check = false;
};

// Fills in `flags`.
CommandLine ServiceCommandLine(const std::string& service, const std::string& summary, ServiceFlags* flags);

// The configuration as these flags say, resolved and checked for `service`; --ranks and --listen are in it.
absl::StatusOr<RunConfig> LoadServiceConfig(const ServiceFlags& flags, const std::string& service);

// A rank's place in its group, from torchrun's or Slurm's variables (ours are torchrun's). Nothing if there are none;
// INVALID_ARGUMENT names a variable that is missing or malformed.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node = 0;   // among those that the ranks are on
  int cores = 0;  // that Slurm gives it alone; 0: that is not said
};
absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment();

}  // namespace quartet
