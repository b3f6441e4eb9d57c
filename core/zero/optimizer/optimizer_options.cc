#include "core/zero/optimizer/optimizer_options.h"

#include <algorithm>
#include <iterator>

namespace quartet {
namespace {

constexpr std::string_view kAdamFields[] = {"adam_beta1", "adam_beta2", "adam_eps"};
constexpr std::string_view kSgdFields[] = {"momentum"};

constexpr OptimizerTraits kOptimizers[] = {
    {.name = "adam", .fields = kAdamFields, .scale_free = true},
    {.name = "sgd", .fields = kSgdFields},
};

}  // namespace

bool OptimizerTraits::Has(std::string_view field) const { return std::ranges::find(fields, field) != fields.end(); }

std::span<const OptimizerTraits> Optimizers() { return kOptimizers; }

const OptimizerTraits* FindOptimizer(std::string_view name) {
  const auto* const found = std::ranges::find(kOptimizers, name, &OptimizerTraits::name);
  return found == std::end(kOptimizers) ? nullptr : found;
}

bool IsScaleFree(const TrainerConfig& trainer) {
  const OptimizerTraits* const found = FindOptimizer(trainer.optim());
  return found == nullptr || found->scale_free;
}

}  // namespace quartet
