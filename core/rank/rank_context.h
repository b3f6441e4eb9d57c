// Who a process is inside the group of ranks that makes up one service.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "core/comm/store/key_value_store.h"

namespace quartet {

class BatchLimits;

// Filled by RankMain before a service is created. Plain data; `store` and `batch_limits` outlive the service.
struct RankContext {
  std::string service;  // "rollout", "policy_trainer", "critic_trainer", "scorer"
  int rank = 0;         // 0 is the leader
  int world_size = 1;
  int local_rank = 0;  // among the ranks on this host: which GPU
  int local_world_size = 1;
  std::string host;      // address this rank's sockets are bound to
  std::string endpoint;  // host:port of this rank's gRPC server
  std::string device;    // "cpu", "cuda", or "meta" for a plan
  int threads = 1;       // for computing
  absl::Duration collective_timeout = absl::Seconds(300);
  int64_t device_memory_budget = 0;  // bytes; 0: none
  int64_t host_memory_budget = 0;
  std::string collective_backend = "auto";  // as ProcessGroupOptions::backend
  // What all ranks of the service are started with alike, by its fields' paths: a rank that was not is refused.
  std::map<std::string, std::string> configuration;
  KeyValueStore* store = nullptr;
  BatchLimits* batch_limits = nullptr;  // what its clients may bring
};

}  // namespace quartet
