#include "core/model/lora_options.h"

#include <algorithm>
#include <string>
#include <vector>

namespace quartet {

std::optional<LoraOptions> LoraOf(const TrainerConfig& trainer) {
  if (!trainer.has_lora()) return std::nullopt;
  const LoraConfig& lora = trainer.lora();
  return LoraOptions{.r = lora.r(),
                     .alpha = lora.alpha(),
                     .targets = {lora.target_modules().begin(), lora.target_modules().end()},
                     .use_rslora = lora.use_rslora()};
}

void SettleTargets(LoraConfig* lora) {
  std::vector<std::string> settled;
  for (const std::string& target : AdapterTargets()) {
    if (std::ranges::count(lora->target_modules(), target) > 0) settled.push_back(target);
  }
  const auto is_name = [](const std::string& target) { return std::ranges::count(AdapterTargets(), target) > 0; };
  const bool says_all = lora->target_modules_size() == 1 && lora->target_modules(0) == kAllLinear;
  if (!says_all && !std::ranges::all_of(lora->target_modules(), is_name)) return;
  if (says_all || settled.empty() || settled == AdapterTargets()) settled = {std::string(kAllLinear)};
  lora->mutable_target_modules()->Assign(settled.begin(), settled.end());
}

}  // namespace quartet
