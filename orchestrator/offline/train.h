// A whole run of a method that learns from rows alone, from a resolved configuration to a model's folder.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/config/run_config.h"
#include "orchestrator/session/run_session.h"

namespace quartet {

// Of a session of Program::kSft, kDpo or kRewardModel: that nothing is wrong that TrainOnRows finds before run_dir is
// made or a service is started; makes and starts nothing.
absl::Status CheckRows(RunSession& session);

// Returns the model's folder, relative to the run folder. Whatever is wrong
// with the configuration or what it names is found before run_dir is made or any service started
// (RunSession::ReadInputs). Where a service ended by itself the error says so, whatever call failed because of it.
absl::StatusOr<std::string> TrainOnRows(RunSession session);

}  // namespace quartet
