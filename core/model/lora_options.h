// What a configuration says of adapters. LibTorch-free.
#pragma once

#include <optional>

#include "core/model/lora.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Nothing where the trainer trains a whole model.
std::optional<LoraOptions> LoraOf(const TrainerConfig& trainer);

// Names the products in one way, so that whoever says the same in other words says it alike: "all-linear" where they
// are all, also where none is named, else each once, in the order of a block. Names that are paths stay as they are.
void SettleTargets(LoraConfig* lora);

}  // namespace quartet
