// What is asked of a plan, on the command line. LibTorch-free: what is wrong with it is said before LibTorch is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/command_line/command_line.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct PlanRequest {
  ConfigSources sources;
  std::vector<std::string> services;
  enum class Search { kNone, kGpus, kBatch } search = Search::kNone;
  bool json = false;
  // In place of the datasheet's rates of a GPU: operations and bytes a second.
  std::optional<double> flops;
  std::optional<double> bytes_per_second;
  // In place of the known figures: bytes of a rank's process beside tensors, and of CUDA and NCCL on a GPU for a rank.
  std::optional<int64_t> process_bytes;
  std::optional<int64_t> cuda_bytes;
  RunConfig config;  // resolved
};

// Fills in `request`, all but its configuration.
CommandLine PlanCommandLine(PlanRequest* request);

// Loads the configuration, and names all services where none is named. INVALID_ARGUMENT or NOT_FOUND names the flag or
// field. The models of `services` have a config.json that suits.
absl::Status LoadPlanRequest(PlanRequest* request);

// The flags with which another program has the request's configuration, wherever it is started: paths of --config and
// --set are absolute. `request` is loaded.
std::vector<std::string> ConfigArguments(const PlanRequest& request);

}  // namespace quartet
