#include "core/model/lora_options.h"

namespace quartet {

std::optional<LoraOptions> LoraOf(const TrainerConfig& trainer) {
  if (!trainer.has_lora()) return std::nullopt;
  const LoraConfig& lora = trainer.lora();
  return LoraOptions{.r = lora.r(),
                     .alpha = lora.alpha(),
                     .targets = {lora.target_modules().begin(), lora.target_modules().end()},
                     .use_rslora = lora.use_rslora()};
}

}  // namespace quartet
