#include "core/model/vocabulary_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/base/logging.h"

namespace quartet {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// log_softmax(logits / temperature) of some tokens, fp32, [c, V].
at::Tensor LogSoftmax(const at::Tensor& logits_cV, double temperature) {
  return at::_log_softmax(temperature == 1 ? logits_cV : logits_cV / temperature, -1, /*half_to_float=*/false);
}

// The logits are made anew in backward: what is saved between the passes is what came in.
class LogProbsFunction : public torch::autograd::Function<LogProbsFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden_TD, const at::Tensor& head_VD,
                               const at::Tensor& targets_T, double temperature, bool with_entropy,
                               int64_t chunk_tokens) {
    const int64_t T = hidden_TD.size(0);
    const at::TensorOptions fp32 = hidden_TD.options().dtype(at::kFloat);
    at::Tensor log_prob_T = at::empty({T}, fp32);
    at::Tensor entropy_T = at::empty({with_entropy ? T : 0}, fp32);
    for (int64_t begin = 0; begin < T; begin += chunk_tokens) {
      const int64_t end = std::min(T, begin + chunk_tokens);
      const at::Tensor logits = VocabularyLogits(hidden_TD.slice(0, begin, end), head_VD);
      at::Tensor log_probs = LogSoftmax(logits, temperature);
      log_prob_T.slice(0, begin, end)
          .copy_(log_probs.gather(1, targets_T.slice(0, begin, end).unsqueeze(1)).squeeze(1));
      if (with_entropy) {
        if (temperature != 1) log_probs = LogSoftmax(logits, 1);
        entropy_T.slice(0, begin, end).copy_(log_probs.exp().mul_(log_probs).sum(-1).neg_());
      }
    }
    context->save_for_backward({hidden_TD, head_VD, targets_T});
    context->saved_data["temperature"] = temperature;
    context->saved_data["chunk_tokens"] = chunk_tokens;
    context->mark_non_differentiable({entropy_T});
    return {log_prob_T, entropy_T};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &hidden_TD = saved[0], &head_VD = saved[1], &targets_T = saved[2];
    const double temperature = context->saved_data["temperature"].toDouble();
    const int64_t chunk_tokens = context->saved_data["chunk_tokens"].toInt();
    const int64_t T = hidden_TD.size(0);
    const at::Tensor grad_T = grads[0] / temperature;
    at::Tensor hidden_grad_TD, head_grad_VD;
    if (context->needs_input_grad(0)) hidden_grad_TD = at::empty_like(hidden_TD);
    if (context->needs_input_grad(1)) head_grad_VD = at::zeros(head_VD.sizes(), head_VD.options().dtype(at::kFloat));
    for (int64_t begin = 0; begin < T; begin += chunk_tokens) {
      const int64_t end = std::min(T, begin + chunk_tokens);
      const at::Tensor hidden = hidden_TD.slice(0, begin, end);
      const at::Tensor grad = grad_T.slice(0, begin, end).unsqueeze(1);
      // d log_prob / d logits = (onehot - softmax) / temperature.
      at::Tensor logits_grad = LogSoftmax(VocabularyLogits(hidden, head_VD), temperature).exp_().mul_(-grad);
      logits_grad.scatter_add_(1, targets_T.slice(0, begin, end).unsqueeze(1), grad);
      logits_grad = logits_grad.to(hidden_TD.scalar_type());
      if (hidden_grad_TD.defined()) hidden_grad_TD.slice(0, begin, end).copy_(at::mm(logits_grad, head_VD));
      if (!head_grad_VD.defined()) continue;
      if (head_VD.scalar_type() == at::kFloat) {
        head_grad_VD.addmm_(logits_grad.t(), hidden);
      } else {
        head_grad_VD.add_(at::mm(logits_grad.t(), hidden));
      }
    }
    if (head_grad_VD.defined()) head_grad_VD = head_grad_VD.to(head_VD.scalar_type());
    return {hidden_grad_TD, head_grad_VD, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor VocabularyLogits(const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
  const c10::NoGradGuard no_grad;
  if (head_VD.scalar_type() == at::kFloat) return at::mm(hidden_TD, head_VD.t());
  // A product of bf16 matrices comes out as bf16: logits of usual size would move in steps of 1/8, and
  // log-probabilities with them. The factors are widened instead, the head some rows at a time.
  constexpr int64_t kRows = 4096;
  const at::Tensor hidden = hidden_TD.to(at::kFloat);
  const int64_t V = head_VD.size(0);
  const at::Tensor logits_TV = at::empty({hidden.size(0), V}, hidden.options());
  for (int64_t begin = 0; begin < V; begin += kRows) {
    const int64_t end = std::min(V, begin + kRows);
    at::Tensor part = logits_TV.slice(1, begin, end);
    at::mm_out(part, hidden, head_VD.slice(0, begin, end).to(at::kFloat).t());
  }
  return logits_TV;
}

TokenLogProbs ChunkedLogProbs(const at::Tensor& hidden_TD, const at::Tensor& head_VD, const at::Tensor& targets_T,
                              double temperature, bool with_entropy, int64_t chunk_tokens) {
  QUARTET_CHECK(temperature > 0 && chunk_tokens > 0) << temperature << ", " << chunk_tokens;
  const variable_list out =
      LogProbsFunction::apply(hidden_TD, head_VD, targets_T, temperature, with_entropy, chunk_tokens);
  return {.log_prob_T = out[0], .entropy_T = with_entropy ? out[1] : at::Tensor()};
}

}  // namespace quartet
