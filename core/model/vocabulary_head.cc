#include "core/model/vocabulary_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/base/logging.h"
#include "core/model/decoder.h"
#include "core/model/linear.h"
#include "core/model/row_padding.h"

namespace quartet {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Bytes of the head's rows that are worked on at a time where a copy of them is made.
constexpr int64_t kHeadRowsBytes = int64_t{16} << 20;
// A chunk's softmax is taken in so many parts: its temporaries, three at most, are then a part of the chunk.
constexpr int64_t kPartsOfChunk = 8;

// Calls use(begin, end) for all of [0, count), `size` at a time.
template <typename Use>
void InParts(int64_t count, int64_t size, const Use& use) {
  for (int64_t begin = 0; begin < count; begin += size) use(begin, std::min(count, begin + size));
}

// Of `row_numel` elements of `type` each.
int64_t RowsWithin(int64_t bytes, int64_t row_numel, at::ScalarType type) {
  return std::max<int64_t>(1, bytes / (row_numel * static_cast<int64_t>(c10::elementSize(type))));
}

// log_softmax(logits / temperature) of some tokens, [c, V].
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
    const at::TensorOptions wide = hidden_TD.options().dtype(WideType(hidden_TD.scalar_type()));
    at::Tensor log_prob_T = at::empty({T}, wide);
    at::Tensor entropy_T = at::empty({with_entropy ? T : 0}, wide);
    InParts(T, chunk_tokens, [&](int64_t begin, int64_t end) {
      const at::Tensor logits_cV = VocabularyLogits(hidden_TD.slice(0, begin, end), head_VD);
      InParts(end - begin, PartTokens(chunk_tokens), [&](int64_t first, int64_t last) {
        const at::Tensor logits = logits_cV.slice(0, first, last);
        const at::Tensor targets = targets_T.slice(0, begin + first, begin + last).unsqueeze(1);
        at::Tensor log_probs = LogSoftmax(logits, temperature);
        log_prob_T.slice(0, begin + first, begin + last).copy_(log_probs.gather(1, targets).squeeze(1));
        if (!with_entropy) return;
        if (temperature != 1) log_probs = LogSoftmax(logits, 1);
        entropy_T.slice(0, begin + first, begin + last).copy_(log_probs.exp().mul_(log_probs).sum(-1).neg_());
      });
    });
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
    if (context->needs_input_grad(1)) {
      head_grad_VD = at::zeros(head_VD.sizes(), head_VD.options().dtype(WideType(head_VD.scalar_type())));
    }
    InParts(T, chunk_tokens, [&](int64_t begin, int64_t end) {
      const at::Tensor hidden = hidden_TD.slice(0, begin, end);
      at::Tensor logits_cV = VocabularyLogits(hidden, head_VD);
      InParts(end - begin, PartTokens(chunk_tokens), [&](int64_t first, int64_t last) {
        // d log_prob / d logits = (onehot - softmax) / temperature, in the logits' place.
        const at::Tensor grad = grad_T.slice(0, begin + first, begin + last).unsqueeze(1);
        at::Tensor logits = logits_cV.slice(0, first, last);
        at::mul_out(logits, LogSoftmax(logits, temperature).exp_(), grad.neg());
        logits.scatter_add_(1, targets_T.slice(0, begin + first, begin + last).unsqueeze(1), grad);
      });
      if (hidden_TD.scalar_type() == logits_cV.scalar_type()) {
        AddHeadGradient(logits_cV, hidden, head_VD, begin, end, &hidden_grad_TD, &head_grad_VD);
        return;
      }
      // Rows of zeros add nothing.
      const int64_t rows = PaddedRows(end - begin);
      logits_cV = NarrowPadded(logits_cV, rows, hidden_TD.scalar_type());
      AddHeadGradient(logits_cV, NarrowPadded(hidden, rows, hidden_TD.scalar_type()), head_VD, begin, end,
                      &hidden_grad_TD, &head_grad_VD);
    });
    if (head_grad_VD.defined()) head_grad_VD = head_grad_VD.to(head_VD.scalar_type());
    return {hidden_grad_TD, head_grad_VD, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  static int64_t PartTokens(int64_t chunk_tokens) { return (chunk_tokens + kPartsOfChunk - 1) / kPartsOfChunk; }

  // `rows` rows of `type`: those of `values`, then zeros.
  static at::Tensor NarrowPadded(const at::Tensor& values, int64_t rows, at::ScalarType type) {
    const int64_t count = values.size(0);
    const at::Tensor padded = at::empty({rows, values.size(1)}, values.options().dtype(type));
    padded.slice(0, 0, count).copy_(values);
    padded.slice(0, count).zero_();
    return padded;
  }

  // Of tokens [begin, end), from the gradient of their logits; there may be rows of zeros behind them. What is not
  // asked for is undefined.
  static void AddHeadGradient(const at::Tensor& logits_grad_cV, const at::Tensor& hidden_cD, const at::Tensor& head_VD,
                              int64_t begin, int64_t end, at::Tensor* hidden_grad_TD, at::Tensor* head_grad_VD) {
    if (hidden_grad_TD->defined()) {
      hidden_grad_TD->slice(0, begin, end).copy_(at::mm(logits_grad_cV, head_VD).slice(0, 0, end - begin));
    }
    if (!head_grad_VD->defined()) return;
    if (head_VD.scalar_type() == head_grad_VD->scalar_type()) {
      head_grad_VD->addmm_(logits_grad_cV.t(), hidden_cD);
      return;
    }
    InParts(head_VD.size(0), RowsWithin(kHeadRowsBytes, head_VD.size(1), head_VD.scalar_type()),
            [&](int64_t first, int64_t last) {
              head_grad_VD->slice(0, first, last).add_(at::mm(logits_grad_cV.slice(1, first, last).t(), hidden_cD));
            });
  }
};

}  // namespace

at::Tensor VocabularyLogits(const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
  const c10::NoGradGuard no_grad;
  const at::ScalarType wide = WideType(head_VD.scalar_type());
  if (head_VD.scalar_type() == wide) return at::mm(hidden_TD, head_VD.t());
  if (UsesBf16Gemm(head_VD)) return WideBf16Product(hidden_TD, head_VD);
  // LibTorch's product of bf16 matrices comes out as bf16: logits of usual size would move in steps of 1/8, and
  // log-probabilities with them. The factors are widened instead, the head some rows at a time.
  const at::Tensor hidden = hidden_TD.to(wide);
  const int64_t V = head_VD.size(0);
  const at::Tensor logits_TV = at::empty({hidden.size(0), V}, hidden.options());
  InParts(V, RowsWithin(kHeadRowsBytes, head_VD.size(1), wide), [&](int64_t begin, int64_t end) {
    at::Tensor part = logits_TV.slice(1, begin, end);
    at::mm_out(part, hidden, head_VD.slice(0, begin, end).to(wide).t());
  });
  return logits_TV;
}

TokenLogProbs ChunkedLogProbs(const at::Tensor& hidden_TD, const at::Tensor& head_VD, const at::Tensor& targets_T,
                              double temperature, bool with_entropy, int64_t chunk_bytes) {
  QUARTET_CHECK(temperature > 0 && chunk_bytes > 0) << temperature << ", " << chunk_bytes;
  const int64_t chunk_tokens = RowsWithin(chunk_bytes, head_VD.size(0), WideType(head_VD.scalar_type()));
  const variable_list out =
      LogProbsFunction::apply(hidden_TD, head_VD, targets_T, temperature, with_entropy, chunk_tokens);
  return {.log_prob_T = out[0], .entropy_T = with_entropy ? out[1] : at::Tensor()};
}

}  // namespace quartet
