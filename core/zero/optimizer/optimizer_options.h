// The optimizers by name, and the fields of TrainerConfig that are theirs: a row for each. Defaults and checks go by
// the rows, without LibTorch; the updates themselves are core/zero/optimizer/optimizer.h. Formulas: docs/algorithms.md.
#pragma once

#include <span>
#include <string_view>

#include "proto/run_config.pb.h"

namespace quartet {

struct OptimizerTraits {
  std::string_view name;                     // in TrainerConfig.optim
  std::span<const std::string_view> fields;  // of TrainerConfig, which have no effect with others
  // A step moves each parameter by about the learning rate, however large gradients are (Kingma and Ba 2015, section
  // 2.1), which is what default learning rates are for; for other optimizers they have to be set.
  bool scale_free = false;

  bool Has(std::string_view field) const;
};

std::span<const OptimizerTraits> Optimizers();
// Null where none has the name.
const OptimizerTraits* FindOptimizer(std::string_view name);
// Of the one that `trainer` names. True of an unknown one, which is refused elsewhere.
bool IsScaleFree(const TrainerConfig& trainer);

}  // namespace quartet
