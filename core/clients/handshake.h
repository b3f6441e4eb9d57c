// The first call to each service: who is there, and whether they fit together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "proto/common.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What the services said of themselves.
struct Handshake {
  ServiceInfo rollout, policy_trainer, scorer;
  std::optional<ServiceInfo> critic_trainer;
};

// Told again and again of a service that is waited for while it loads its model, in a sentence, and what it says that
// it is at; may be "".
using OnLoading = std::function<void(const std::string& waiting, const std::string& detail)>;

// Asks every service who it is, waits for those that are still loading, and refuses, with both values in the message:
// another service at the address, another protocol version, a configuration other than the run's (all differences of
// all services), ranks whose CPUs multiply in different ways, models of another number of token ids than the
// tokenizer's (their embeddings may be padded), a longest sequence shorter than prompt and answer, a rollout that is
// paused. Which training state a trainer was started from is its own affair where the run is to be continued. What
// services that have the run's own configuration cannot do by it (tokens, lengths) is INVALID_ARGUMENT, as no other try
// mends it; else FAILED_PRECONDITION.
absl::StatusOr<Handshake> ShakeHands(Services& services, const RunConfig& config, int32_t tokenizer_vocab_size,
                                     const OnLoading& on_loading);

// Refuses ranks, of one service or of several, that multiply bf16 matrices by different CPU instructions: their
// log-probabilities of one token differ.
absl::Status CheckCpuKernels(const std::vector<const ServiceInfo*>& services);

// The same of one service.
absl::StatusOr<ServiceInfo> CheckService(ServiceClient& client, const RunConfig& config, int32_t tokenizer_vocab_size,
                                         int64_t longest_sequence, const OnLoading& on_loading);

}  // namespace quartet
