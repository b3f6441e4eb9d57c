#include "core/zero/optimizer/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>

#include "core/base/logging.h"
#include "core/field_rules/field_rules.h"
#include "core/zero/optimizer/optimizer_options.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

// Loshchilov and Hutter 2019, as torch.optim.AdamW has it.
class AdamW final : public Optimizer {
 public:
  explicit AdamW(const TrainerConfig& trainer)
      : beta1_(trainer.adam_beta1()),
        beta2_(trainer.adam_beta2()),
        eps_(trainer.adam_eps()),
        weight_decay_(trainer.weight_decay()) {}

  std::string_view name() const override { return "adam"; }
  std::vector<std::string> state() const override { return {"exp_avg", "exp_avg_sq"}; }

  void Step(const FlatRuns& runs, const OptimizerStep& step) const override {
    // An fp32 scalar for each part, as the fused kernel wants it.
    const at::Tensor number = at::full({}, static_cast<double>(step.number),
                                       at::TensorOptions(at::kFloat).device(runs.weights.front().device()));
    const std::vector<at::Tensor> numbers(runs.weights.size(), number);
    at::_fused_adamw_(runs.weights, runs.gradients, runs.state[0], runs.state[1], /*max_exp_avg_sqs=*/{}, numbers,
                      step.learning_rate, beta1_, beta2_, runs.decay ? weight_decay_ : 0, eps_, /*amsgrad=*/false,
                      /*maximize=*/false, step.grad_scale);
  }

 private:
  const double beta1_, beta2_, eps_, weight_decay_;
};

// As torch.optim.SGD has it, without dampening: buffer = momentum * buffer + gradient + weight_decay * weights, by
// which the weights go. Its first step, which makes the buffer the gradient, is what a buffer of zeros does by itself.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(const TrainerConfig& trainer) : momentum_(trainer.momentum()), weight_decay_(trainer.weight_decay()) {}

  std::string_view name() const override { return "sgd"; }
  std::vector<std::string> state() const override {
    return momentum_ == 0 ? std::vector<std::string>() : std::vector<std::string>{"momentum_buffer"};
  }

  void Step(const FlatRuns& runs, const OptimizerStep& step) const override {
    at::_fused_sgd_(runs.weights, runs.gradients, momentum_ == 0 ? std::vector<at::Tensor>() : runs.state[0],
                    runs.decay ? weight_decay_ : 0, momentum_, step.learning_rate, /*dampening=*/0, /*nesterov=*/false,
                    /*maximize=*/false, /*is_first_step=*/false, step.grad_scale);
  }

 private:
  const double momentum_, weight_decay_;
};

template <typename Kind>
std::shared_ptr<const Optimizer> Make(const TrainerConfig& trainer) {
  return std::make_shared<const Kind>(trainer);
}

constexpr struct {
  std::string_view name;
  std::shared_ptr<const Optimizer> (*make)(const TrainerConfig&);
} kMakers[] = {{"adam", &Make<AdamW>}, {"sgd", &Make<Sgd>}};

}  // namespace

std::shared_ptr<const Optimizer> MakeOptimizer(const TrainerConfig& trainer) {
  TrainerConfig filled = trainer;
  FillRules(&filled);
  for (const auto& [name, make] : kMakers) {
    if (name == filled.optim()) return make(filled);
  }
  QUARTET_CHECK(false) << "unresolved optim \"" << filled.optim() << "\"";
  return nullptr;
}

}  // namespace quartet
