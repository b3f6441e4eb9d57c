// What is asked of a plan, on the command line. LibTorch-free: what is wrong with it is said before LibTorch is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/run_config.h"
#include "orchestrator/terminal/command_line.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct PlanRequest {
  RunConfig config;                 // resolved
  Program program = Program::kPpo;  // or kSft, kDpo, kRewardModel
  std::vector<std::string> services;
  enum class Search { kNone, kGpus, kBatch } search = Search::kNone;
  bool json = false;
  // In place of the datasheet's rates of a GPU: operations and bytes a second.
  std::optional<double> flops;
  std::optional<double> bytes_per_second;
  // In place of the known figures: bytes of a rank's process beside tensors, and of CUDA and NCCL on a GPU for a rank.
  std::optional<int64_t> process_bytes;
  std::optional<int64_t> cuda_bytes;
};

const std::vector<FlagSpec>& PlanFlags();

// INVALID_ARGUMENT or NOT_FOUND names the flag or field. The models of `services` have a config.json that suits.
absl::StatusOr<PlanRequest> ReadPlanRequest(const CommandLine& flags);

}  // namespace quartet
