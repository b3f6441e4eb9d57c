// That a model has the scalar head that its folder has. LibTorch-free.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/model/model_config.h"
#include "core/safetensors/reader.h"

namespace quartet {

// Of a model that is wanted with a scalar head: `weights` are those of `folder`, read as `config`, whose scalar_head
// may be an option's. INVALID_ARGUMENT where they have a bias beside the head, or have the head under the
// value_head_prefix of a config.json whose class is not one that it is followed for, instead of that of the class; or
// where they lack the head and have a tensor, which would be left out, of the shape or a usual name of one: its name,
// and how it is read, or is left out by the value_head_prefix "score".
absl::Status CheckScalarHead(const ModelConfig& config, const std::string& folder, const CheckpointReader& weights);

}  // namespace quartet
