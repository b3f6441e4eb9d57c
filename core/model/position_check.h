// How long sequences may be that a model generates. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/model/model_config.h"

namespace quartet {

// INVALID_ARGUMENT where sequences of `length` tokens, the value of `field`, reach beyond the positions or the sliding
// window of the model in `folder`. 0 tokens are always in order.
absl::Status CheckLengthInPositions(const ModelConfig& config, const std::string& folder, std::string_view field,
                                    int64_t length);

}  // namespace quartet
