// What a run will take of each device and each host, before anything starts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/rank_run.h"
#include "proto/run_config.pb.h"

namespace quartet {

inline constexpr int64_t kMiB = int64_t{1} << 20;

// What a rank takes beside its tensors, in bytes. Not computed: measured, or told by others; docs/memory.md says where
// and how.
struct OutsideTensors {
  // Code, libraries, gRPC, threads' stacks, and what the C library keeps: of the host. On GPUs CUDA's libraries, too.
  int64_t process = 0;
  int64_t process_on_gpu = 0;
  // A CUDA context with the kernels in use, and NCCL's buffers for each group of ranks: of the GPU.
  int64_t cuda_context = 0;
  int64_t nccl_of_two = 0;
  int64_t nccl_of_more = 0;
};
OutsideTensors DefaultOutsideTensors();

struct ServicePlan {
  std::string service;
  bool on_gpu = false;
  int ranks = 1;
  RankUse use;  // of the rank that takes most, category by category
  int64_t outside_device = 0;
  int64_t outside_host = 0;

  // With tensors on the CPU everything is of the host.
  int64_t device_bytes() const { return on_gpu ? use.device().total + outside_device : 0; }
  int64_t host_bytes() const { return use.host().total + outside_host + (on_gpu ? 0 : use.device().total); }
  // The same while it sleeps (rollout.enable_sleep).
  int64_t asleep_device_bytes() const { return on_gpu ? use.device().asleep + outside_device : 0; }
  int64_t asleep_host_bytes() const { return use.host().asleep + outside_host + (on_gpu ? 0 : use.device().asleep); }
};

// What is beside the first rank of a service, on its host.
struct LeaderPlan {
  std::string service;
  int64_t calls = 0;  // of the largest calls (LeaderCallBytes)
  int64_t programs =
      0;  // programs of answers and commands that the scorer starts: as many at once, as large as they may be
};

// GPUs, or hosts, that hold the same ranks.
struct PlaceUse {
  std::string name;  // "GPUs 0-3 of nodes 0-1", "nodes 0-1"
  int count = 0;
  std::map<std::string, int> ranks;    // by service, of each
  int64_t bytes = 0;                   // of each; of hosts, of the one that has most leaders' calls and programs
  std::array<int64_t, 3> phases = {};  // of `bytes`, the largest: answers, policy, critic; equal where nobody sleeps
  int64_t capacity = 0;                // 0: not stated
  bool fits() const { return capacity == 0 || bytes <= capacity; }
  // What is proposed leaves a twentieth of the capacity free, as a run takes up to 2.5 % more than its plan: bytes that
  // are left before that, below 0 where it is not left. Of no use where the capacity is not stated.
  int64_t room() const { return capacity - capacity / 20 - bytes; }
  int64_t excess() const { return capacity == 0 ? 0 : std::max<int64_t>(0, -room()); }
};

struct Plan {
  std::vector<ServicePlan> services;
  std::vector<LeaderPlan> leaders;
  std::vector<PlaceUse> devices;
  std::vector<PlaceUse> hosts;

  bool fits() const;
  // Over all kinds of places; 0 where it fits with the margin.
  int64_t excess() const;
};

// Keeps what it has run, so that plans that differ little are quick. One thread.
class Planner {
 public:
  // `services` are names of those that are planned, without repetition; `program` as for RunRank.
  Planner(std::vector<std::string> services, const OutsideTensors& outside, Program program = Program::kPpo)
      : services_(std::move(services)), outside_(outside), program_(program) {}

  // `config` is resolved. Services that have no model (a scorer of rules alone) take no part, but for the calls and
  // programs of a scorer that starts programs. INVALID_ARGUMENT names
  // what is missing or not allowed.
  absl::StatusOr<Plan> MakePlan(const RunConfig& config);

  const std::vector<std::string>& services() const { return services_; }
  Program program() const { return program_; }

 private:
  absl::StatusOr<RankUse> Run(const RunConfig& config, const std::string& service, int rank, const GpuRoom& room);

  const std::vector<std::string> services_;
  const OutsideTensors outside_;
  const Program program_;
  std::map<std::string, RankUse> runs_;  // by what they depend on
};

// Whether a service has device "cuda".
bool OnGpu(const RunConfig& config, const std::string& service);

// Bytes of one GPU of the cluster; 0: not stated.
int64_t GpuCapacity(const RunConfig& config);

}  // namespace quartet
