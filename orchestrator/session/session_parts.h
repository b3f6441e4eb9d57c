// What every run has around its loop, whatever that is: what is read, services that are started, errors that are
// explained.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/clients/cancellation.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/run_folder/run_folder.h"
#include "orchestrator/terminal/terminal_view.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct SessionOptions {
  // Start the services here; else they run already at config.services.*.listen.
  bool launch = false;
  // As ServiceLauncherOptions::trace.
  std::string trace;
  // An entry of run_dir that may be there before the run.
  std::string allowed_entry;
  // Where the configuration's values are from, for the run folder.
  ValueOrigins origins = {};
  // The command that continues the run, for the error of one that ends before its time; may be empty.
  std::string continue_command;
};

// The services that a program drives; of Program::kPpo, kSft, kDpo or kRewardModel.
std::vector<std::string> ServicesOf(Program program, const RunConfig& config);

// The tokenizer of `model`, "actor" or "critic". Errors name the option.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const RunConfig& config, const std::string& model);

// Shows how far the checking of rows is on the live line, once it takes long enough to be asked about.
std::function<void(int64_t done, int64_t all)> ShowChecking(TerminalView& view);

// Whatever is wrong before a run is made, its input is.
absl::Status AsWrongInput(const absl::Status& status);

// Starts `services` if asked to and puts their addresses into `config`.
absl::StatusOr<std::unique_ptr<ServiceLauncher>> LaunchServices(const SessionOptions& options,
                                                                const std::vector<std::string>& services,
                                                                const RunFolder& folder, TerminalView& view,
                                                                Cancellation& cancellation, RunConfig* config);

// The reason behind `status`: a service that ended by itself, if there is one.
absl::Status Explain(const absl::Status& status, ServiceLauncher* launcher, const Cancellation& cancellation);

// `status`, with how the run is continued that ended with it.
absl::Status WithContinuation(const absl::Status& status, const SessionOptions& options, const RunFolder& folder,
                              const TrainConfig& train);

}  // namespace quartet
