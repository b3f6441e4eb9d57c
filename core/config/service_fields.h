// What of a run's configuration a service goes by. LibTorch-free and gRPC-free.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "proto/run_config.pb.h"

namespace quartet {

// The fields of a resolved configuration that the service of this name uses, or that are its own by their section, as
// paths ("actor.dtype", "reward.source.0.rule") with their values in text format; fields that are not set are left out.
// Neither where it runs (services, tls), nor what only its other clients see (rollout.http), nor what GetInfo tells by
// itself (rollout.max_model_len), nor what the orchestrator says in its calls.
std::map<std::string, std::string> ServiceFields(const RunConfig& config, std::string_view service);

}  // namespace quartet
