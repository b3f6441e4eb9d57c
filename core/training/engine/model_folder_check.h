// Checks of model folders before anything is loaded. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/model_config.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Of the model that the section "actor" or "critic" trains.
HeadKind TrainedHead(std::string_view section);

// The model that the section `name`, "actor" or "critic", trains, with its adapters: errors name its fields.
// INVALID_ARGUMENT where the folder has adapters and the section does not say that adapters are trained.
absl::StatusOr<ModelConfig> ReadTrainedModel(const std::string& name, const TrainerConfig& trainer);

// How many token ids there are for the model of `folder`, read as `config`: as many as its tokenizer.json has (of
// adapters without one, their model's); without
// one, as its embedding has rows, of which there are often more (ShardedModelOptions::vocabulary). INVALID_ARGUMENT
// where the tokenizer has ids that the model does not have: names both sizes.
absl::StatusOr<int64_t> ReadVocabulary(const std::string& folder, const ModelConfig& config);

// The same of a model that is given the token ids of the actor, whose folder is another: the actor's. INVALID_ARGUMENT
// where the two have tokenizers that differ, or the model has fewer rows than the actor ids; names both folders, and
// the difference or the sizes. `role` is what `folder` is for: "reference model". With an `actor_folder` of "" it is as
// above.
absl::StatusOr<int64_t> ReadVocabulary(const std::string& role, const std::string& folder, const ModelConfig& config,
                                       const std::string& actor_folder);

}  // namespace quartet
