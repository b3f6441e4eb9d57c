// A whole PPO run, from a resolved configuration to its result.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "orchestrator/loop/ppo.h"
#include "orchestrator/session/run_session.h"
#include "proto/common.pb.h"

namespace quartet {

struct PpoResult {
  PpoSummary summary;
  // What each service said of itself at the end, by its name.
  std::map<std::string, ServiceInfo> services;
};

// That nothing is wrong that TrainByPpo finds before run_dir is made or a service is started; makes and starts nothing.
absl::Status CheckPpo(RunSession& session);

// Whatever is wrong with the configuration or what it names is found before run_dir is made or any service started
// (RunSession::ReadInputs). Where a service ended by itself the error says so, whatever call failed because of it.
absl::StatusOr<PpoResult> TrainByPpo(RunSession session);

}  // namespace quartet
