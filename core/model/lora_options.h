// What a configuration says of adapters. LibTorch-free.
#pragma once

#include <optional>

#include "core/model/lora.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Nothing where the trainer trains a whole model.
std::optional<LoraOptions> LoraOf(const TrainerConfig& trainer);

}  // namespace quartet
