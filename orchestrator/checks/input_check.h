// What of a run can be wrong before anything is made or started: the files and devices that its configuration names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/config/run_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

// That a model's folder, the value of `option`, is there. NOT_FOUND says where relative paths start.
absl::Status CheckModelFolder(const std::string& option, const std::string& folder);

// That the models of `services` are there and what their config.json says suits the configuration: all that a plan
// reads of them. Errors name the option.
absl::Status CheckModelConfigs(const RunConfig& config, const std::vector<std::string>& services);

// That it is clear what the reference is where actor.pretrain is a folder of adapters; for programs that have one.
absl::Status CheckReferenceIsClear(const RunConfig& config);

// By whom the services of a run are started.
enum class ServicesStart {
  kByOthers,   // they run already
  kHere,       // on this host
  kOnCluster,  // by Slurm or Ray, of these programs, on hosts that have the same files
};

// Certificates and the folder of the actor, or of a reward model that is trained; of services that are not there yet
// also what those of `program` will load: model folders (shapes and vocabularies, lengths, what weights there are;
// those of checkpoints are read whole, and held against the hashes of their record), training states, the HTTP
// interface's files; whether they can be on the devices that they are placed on; of this host whether it has these, and
// nobody else is at the ports where they listen. Errors name the option, what is wrong and what would help.
absl::Status CheckInputs(const RunConfig& config, Program program, ServicesStart start);

// That the trainer of `section`, "actor" or "critic", can go on from the training state that its load_checkpoint names,
// if it names one: with the optimizer of `config`, its average of the weights and its adapters. Errors name the option.
absl::Status CheckLoadedState(const RunConfig& config, const std::string& section);

// That a batch is not larger than all `prompts` prompts, so that it would have to repeat some.
absl::Status CheckBatch(const RunConfig& config, int64_t prompts);

}  // namespace quartet
