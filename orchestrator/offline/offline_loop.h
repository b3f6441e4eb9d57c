// The loop of methods that learn from rows of data alone: schedule, optimizer steps, records, held-out checks, a
// checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clients/handshake.h"
#include "core/clients/service_clients.h"
#include "core/data/dataset.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "core/run_folder/records/metrics.h"
#include "core/run_folder/run_folder.h"
#include "core/terminal/terminal_view.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What every trainer says of an optimizer step.
struct OfflineStep {
  double loss = 0;
  double grad_norm = 0;
  bool skipped = false;
  uint64_t tokens = 0;
  uint64_t computed_tokens = 0;
  uint64_t micro_batches = 0;
  double balance = 0;
  std::optional<PairStats> pairs;  // of losses of pairs
};
template <typename Reply>
OfflineStep StepOf(const Reply& reply) {
  OfflineStep step = {.loss = reply.loss(),
                      .grad_norm = reply.grad_norm(),
                      .skipped = reply.skipped(),
                      .tokens = reply.tokens(),
                      .computed_tokens = reply.computed_tokens(),
                      .micro_batches = reply.micro_batches(),
                      .balance = reply.balance()};
  if (reply.has_pairs()) step.pairs = reply.pairs();
  return step;
}

// How a method goes through its rows, and what it is called.
struct OfflinePlan {
  std::string name;     // of its metrics: "sft"
  std::string title;    // on the console: "fine-tuning"
  std::string section;  // of its rows: "sft", "preference"
  std::string model;    // the section of what is trained: "actor", "critic"
};

// What one method has of its own. Steps are counted from 0.
class OfflineMethod {
 public:
  virtual ~OfflineMethod() = default;

  virtual OfflinePlan plan() const = 0;
  // The rows that are learned from, and what they hash to.
  virtual const Dataset& rows() const = 0;
  virtual uint64_t rows_hash() const = 0;
  virtual TrainerClient& trainer() = 0;
  // All that it calls.
  virtual std::vector<ServiceClient*> services() { return {&trainer()}; }
  // Meets the services beside the trainer, as CheckService does.
  virtual absl::Status MeetOthers(const ServiceInfo& /*trainer*/, const OnLoading& /*on_loading*/) {
    return absl::OkStatus();
  }
  // An optimizer step on the rows at the positions [begin, begin + count).
  virtual absl::StatusOr<OfflineStep> Step(int64_t step, double learning_rate, int64_t begin, int64_t count) = 0;
  // Of the held-out pairs under the present weights; none where there are none.
  virtual absl::StatusOr<std::optional<PairStats>> Judge() { return std::nullopt; }
};

// What a run is. Nothing is owned.
struct OfflineRun {
  const RunConfig& config;  // resolved
  const Tokenizer& tokenizer;
  RunFolder& folder;
  TerminalView& view;
  // What the run goes on after, of which CheckRowsGoOn holds: the trainer has loaded its state. None in a new run.
  std::optional<CheckpointRecord> resume = {};
  // As PpoRun::ending, ends_continuable and begun.
  std::function<absl::Status()> ending = [] { return absl::OkStatus(); };
  bool ends_continuable = false;
  std::function<void(int64_t steps)> begun = {};
  // What `ending` is of, which gives up looks at held-out pairs. Null: they are not.
  Cancellation* cancellation = nullptr;
};

struct OfflineSummary {
  int64_t steps = 0;                       // those before a continuation included
  std::string checkpoint;                  // the model's folder, relative to the run folder
  std::optional<PairStats> before, after;  // held-out pairs, where there are any; `before` not in a run that goes on
};

// Its optimizer steps over so many rows: max_steps, or, where that is 0, those of all epochs. Of a run that goes on
// after `resume`, whose batch may have been another, those that are made and those of what is left.
int64_t OfflineSteps(int64_t rows, const TrainConfig& train, const std::optional<CheckpointRecord>& resume);

// All optimizer steps that are left (of a run that goes on some are, CheckStepsLeft), with a checkpoint after every
// train.save_steps and the last, or after the step in which the run is asked to end: then it returns the reason, and a
// look at held-out pairs that was under way is left out. The last batch does not reach into an epoch beyond the last. A
// run that was cut off and goes on ends with the bits of one that was not.
absl::StatusOr<OfflineSummary> RunOffline(const OfflineRun& run, OfflineMethod& method);

}  // namespace quartet
