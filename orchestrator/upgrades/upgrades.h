// Replaces services of a run that goes on, at the boundary between two steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cancellation/cancellation.h"
#include "core/clients/handshake.h"
#include "core/clients/service_clients.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "core/run_folder/control_folder.h"
#include "core/run_folder/run_folder.h"
#include "core/terminal/terminal_view.h"
#include "orchestrator/launch/service_starter.h"
#include "orchestrator/upgrades/canary.h"
#include "proto/run_config.pb.h"
#include "proto/weights.pb.h"

namespace quartet {

// Where a run is between two steps.
struct StepBoundary {
  int64_t steps_done = 0;
  const Canary& canary;  // of the last step's batch
  // Of the weights that policy and rollout have, and as what the trainer has published them; none at version 0.
  uint64_t policy_version = 0;
  std::optional<WeightManifest>& published;
  // Makes a checkpoint of the run as it is, unless the last one is that; returns it and its folder.
  std::function<absl::StatusOr<std::pair<CheckpointRecord, std::string>>()> checkpoint;
};

// What the replacing works with. Nothing is owned.
struct UpgradeContext {
  const RunConfig& config;  // resolved, with the addresses that services have at first
  int32_t tokenizer_vocab_size = 0;
  Services& services;
  RunFolder& folder;
  TerminalView& view;
  Cancellation& cancellation;
  ServiceStarter* starter = nullptr;  // null where services were started by hand
  // Told where a service listens from now on.
  std::function<void(const std::string& service, const std::string& address)> on_moved = {};
};

// One thread.
class Upgrades {
 public:
  // Requests are taken from now on.
  static absl::StatusOr<std::unique_ptr<Upgrades>> Open(const UpgradeContext& context);

  // Whether something is asked for. From then on it is this that has to be done next.
  bool IsAsked();

  // Does it: "upgrade" replaces a service, "hold" waits until somebody has done so by hand and says "release". What
  // cannot be done is found before anything is stopped, as far as it can be. A replacement that does not come up, does
  // not fit or answers otherwise goes, and what was there before comes back. Whoever asked is told how it went; an
  // error is returned only where the run cannot go on.
  absl::Status Do(const StepBoundary& boundary);

 private:
  Upgrades(const UpgradeContext& context, std::unique_ptr<ControlFolder> control)
      : context_(context), as_started_(context.config), control_(std::move(control)) {}

  // What is known of a service before it is replaced.
  struct Before {
    ServiceInfo info;
    std::vector<CanaryNumbers> answers;
    std::optional<SavedTrainer> state;  // of a trainer, in the folder `state_folder`
    std::string state_folder;
  };

  // That there are programs for this host, protocol and run in `folder`.
  absl::Status CheckPrograms(const std::string& service, const std::string& folder) const;
  absl::StatusOr<Before> Look(const std::string& service, const StepBoundary& boundary);
  // Whether what runs now can take the place of what was there; gives it the weights. A sentence of what was compared.
  absl::StatusOr<std::string> TakeOn(const std::string& service, const Before& before, const StepBoundary& boundary);
  // The outer status is the run's, the inner one the request's.
  absl::StatusOr<absl::StatusOr<std::string>> Replace(const ControlRequest& request, const StepBoundary& boundary);
  absl::StatusOr<std::string> StartAndTakeOn(const std::string& service, const std::string& programs_folder,
                                             const Before& before, const StepBoundary& boundary);
  absl::Status Hold(const std::string& service, const StepBoundary& boundary);
  void MoveTo(const std::string& service, const std::string& address);
  void Say(const std::string& text);
  void WriteEvent(const std::string& kind, const std::string& text, const StepBoundary& boundary);

  const UpgradeContext context_;
  RunConfig as_started_;  // what the services that run now were started with
  std::unique_ptr<ControlFolder> control_;
  std::optional<ControlRequest> asked_;
};

}  // namespace quartet
