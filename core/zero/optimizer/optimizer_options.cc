#include "core/zero/optimizer/optimizer_options.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "core/base/logging.h"

namespace quartet {
namespace {

using Range = OptimizerOption::Range;

constexpr OptimizerOption kAdamOptions[] = {
    {"adam_beta1", 0.9}, {"adam_beta2", 0.95}, {"adam_eps", 1e-8, Range::kAboveZero}};
constexpr OptimizerOption kSgdOptions[] = {{"momentum", 0.9}};

constexpr OptimizerTraits kOptimizers[] = {
    {.name = "adam", .options = kAdamOptions, .scale_free = true},
    {.name = "sgd", .options = kSgdOptions},
};

const google::protobuf::FieldDescriptor* FieldOf(std::string_view name) {
  const auto* const field = TrainerConfig::descriptor()->FindFieldByName(std::string(name));
  QUARTET_CHECK(field != nullptr) << name;
  return field;
}

}  // namespace

bool OptimizerOption::IsSetIn(const TrainerConfig& trainer) const {
  return trainer.GetReflection()->HasField(trainer, FieldOf(field));
}

double OptimizerOption::In(const TrainerConfig& trainer) const {
  return trainer.GetReflection()->GetDouble(trainer, FieldOf(field));
}

bool OptimizerTraits::Has(std::string_view field) const {
  return std::ranges::find(options, field, &OptimizerOption::field) != options.end();
}

std::span<const OptimizerTraits> Optimizers() { return kOptimizers; }

const OptimizerTraits* FindOptimizer(std::string_view name) {
  const auto* const found = std::ranges::find(kOptimizers, name, &OptimizerTraits::name);
  return found == std::end(kOptimizers) ? nullptr : found;
}

bool IsScaleFree(const TrainerConfig& trainer) {
  const OptimizerTraits* const found = FindOptimizer(trainer.optim());
  return found == nullptr || found->scale_free;
}

void FillOptimizer(TrainerConfig* trainer) {
  if (trainer->optim().empty()) trainer->set_optim("adam");
  const OptimizerTraits* const optimizer = FindOptimizer(trainer->optim());
  if (optimizer == nullptr) return;
  for (const OptimizerOption& option : optimizer->options) {
    if (option.IsSetIn(*trainer)) continue;
    trainer->GetReflection()->SetDouble(trainer, FieldOf(option.field), option.default_value);
  }
}

}  // namespace quartet
