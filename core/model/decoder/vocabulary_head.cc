#include "core/model/decoder/vocabulary_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <ranges>
#include <vector>

#include "core/base/division.h"
#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/hardware/parallel.h"
#include "core/kernels/cpu/log_softmax_rows.h"
#include "core/kernels/cuda/log_softmax_rows.h"
#include "core/kernels/cuda/present_stream.h"
#include "core/kernels/linear.h"
#include "core/kernels/row_padding.h"
#include "core/model/decoder/decoder.h"

namespace quartet {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Bytes of the head's rows that are worked on at a time where a copy of them is made.
constexpr int64_t kHeadRowsBytes = int64_t{16} << 20;
// By LibTorch's operators a chunk's softmax is taken in so many parts: its temporaries, three at most, are then a part
// of the chunk.
constexpr int64_t kPartsOfChunk = 8;

// Calls use(begin, end) for all of [0, count), `size` at a time.
template <typename Use>
void InParts(int64_t count, int64_t size, const Use& use) {
  for (int64_t begin = 0; begin < count; begin += size) use(begin, std::min(count, begin + size));
}

// [0, count) in chunks of `size`, but that the first may be smaller.
struct Chunk {
  int64_t begin, end;
};
std::vector<Chunk> Chunks(int64_t count, int64_t size) {
  std::vector<Chunk> chunks;
  for (int64_t begin = 0, end = (count - 1) % size + 1; begin < count; begin = end, end += size) {
    chunks.push_back({begin, end});
  }
  return chunks;
}

// Of `row_numel` elements of `type` each.
int64_t RowsWithin(int64_t bytes, int64_t row_numel, at::ScalarType type) {
  return std::max<int64_t>(1, bytes / (row_numel * static_cast<int64_t>(c10::elementSize(type))));
}

// log_softmax(logits / temperature) of some tokens, [c, V].
at::Tensor LogSoftmax(const at::Tensor& logits_cV, double temperature) {
  return at::_log_softmax(temperature == 1 ? logits_cV : logits_cV / temperature, -1, /*half_to_float=*/false);
}

int64_t PartTokens(int64_t chunk_tokens) { return CeilDivide(chunk_tokens, kPartsOfChunk); }

// Whether logits of this type are worked on by the kernels of log_softmax_rows.h, else by LibTorch's operators.
bool ByRows(const at::Tensor& tensor, at::ScalarType type) {
  const at::DeviceType device = ComputeDevice(tensor);
  return (device == at::kCPU || device == at::kCUDA) && type == at::kFloat;
}

constexpr char kRows[] = "log-probabilities of rows";

void CheckTargets(const at::Tensor& targets, int64_t vocabulary) {
  const auto* ids = targets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    TORCH_CHECK(ids[i] >= 0 && ids[i] < vocabulary, "target ", ids[i], " of token ", i, "; allowed: 0 to ",
                vocabulary - 1);
  }
}

// HeadTargets, less what they are in the caller's order.
struct TargetsOfRows {
  at::Tensor ids_A, starts_U;
  int64_t vocabulary;  // of HeadTargets, never 0

  // The first one of a row.
  int64_t Begin(int64_t row) const { return starts_U.defined() ? starts_U.const_data_ptr<int64_t>()[row] : row; }
  at::Tensor IdsOf(int64_t first, int64_t last) const { return ids_A.slice(0, Begin(first), Begin(last)); }
  // int64: of each target of the rows [first, last) its row, counted from `first`.
  at::Tensor RowsOf(int64_t first, int64_t last) const {
    at::Tensor rows = at::empty({Begin(last) - Begin(first)}, at::TensorOptions().dtype(at::kLong));
    auto* next = rows.mutable_data_ptr<int64_t>();
    for (int64_t row = first; row < last; ++row) next = std::fill_n(next, Begin(row + 1) - Begin(row), row - first);
    return rows.to(ids_A.device());
  }
};

// Calls use(targets) with those of the rows from `first` on, for as long as their memory lives.
template <typename Use>
void WithRowTargets(const TargetsOfRows& targets, int64_t first, const Use& use) {
  const at::Tensor starts = targets.starts_U.defined() ? targets.starts_U.to(targets.ids_A.device()) : at::Tensor();
  use(RowTargets{.ids = targets.ids_A.const_data_ptr<int64_t>(),
                 .starts = starts.defined() ? starts.const_data_ptr<int64_t>() : nullptr,
                 .first = first});
}

// Of the targets of the rows [first, last), the places in those rows' values, [last - first, V] laid end to end.
at::Tensor Places(const TargetsOfRows& targets, int64_t first, int64_t last, int64_t V) {
  return targets.RowsOf(first, last).mul_(V).add_(targets.IdsOf(first, last));
}

// What a forward pass gives: of all targets, and of c rows.
struct LogProbParts {
  at::Tensor log_prob_A;
  at::Tensor entropy_c;  // of no elements where it is not wanted
  // ByRows, for the gradient; else of no elements. Of the entropy's softmax only where that is wanted.
  at::Tensor log_sum_c;
  at::Tensor entropy_log_sum_c;
};

// Of the rows from `begin` on.
void TakeLogProbs(const at::Tensor& logits_cV, const TargetsOfRows& targets, int64_t begin, double temperature,
                  double entropy_temperature, const LogProbParts& parts) {
  const int64_t c = logits_cV.size(0), V = logits_cV.size(1);
  const bool with_entropy = parts.entropy_c.numel() > 0;
  if (!ByRows(logits_cV, logits_cV.scalar_type())) {
    InParts(c, PartTokens(c), [&](int64_t first, int64_t last) {
      const at::Tensor logits = logits_cV.slice(0, first, last);
      at::Tensor log_probs = LogSoftmax(logits, temperature);
      parts.log_prob_A.slice(0, targets.Begin(begin + first), targets.Begin(begin + last))
          .copy_(log_probs.take(Places(targets, begin + first, begin + last, V)));
      if (!with_entropy) return;
      if (temperature != entropy_temperature) log_probs = LogSoftmax(logits, entropy_temperature);
      parts.entropy_c.slice(0, first, last).copy_(log_probs.exp().mul_(log_probs).sum(-1).neg_());
    });
    return;
  }
  if (logits_cV.is_meta()) return;
  const at::Tensor all = logits_cV.contiguous();
  const auto* logits = all.const_data_ptr<float>();
  auto* log_probs = parts.log_prob_A.mutable_data_ptr<float>();
  auto* log_sums = parts.log_sum_c.mutable_data_ptr<float>();
  EntropyResult entropy = {.temperature = static_cast<float>(entropy_temperature)};
  if (with_entropy) {
    entropy.entropies = parts.entropy_c.mutable_data_ptr<float>();
    entropy.log_sums = parts.entropy_log_sum_c.mutable_data_ptr<float>();
  }
  WithRowTargets(targets, begin, [&](const RowTargets& chosen) {
    if (all.is_cuda()) {
      StartOn(all.device(), kRows, [&](void* stream) {
        return LaunchLogSoftmaxRows(logits, chosen, static_cast<float>(temperature), c, V, log_probs, log_sums,
                                    with_entropy ? &entropy : nullptr, stream);
      });
      return;
    }
    at::parallel_for(0, c, 1, [&](int64_t first, int64_t last) {
      const EntropyResult part = {.temperature = entropy.temperature,
                                  .entropies = with_entropy ? entropy.entropies + first : nullptr,
                                  .log_sums = with_entropy ? entropy.log_sums + first : nullptr};
      LogSoftmaxRows(logits + first * V, chosen.From(first), static_cast<float>(temperature), last - first, V,
                     log_probs, log_sums + first, with_entropy ? &part : nullptr);
    });
  });
}

// `rows` rows of `type`: those of `values`, then zeros.
at::Tensor NarrowPadded(const at::Tensor& values, int64_t rows, at::ScalarType type) {
  const int64_t count = values.size(0);
  const at::Tensor padded = at::empty({rows, values.size(1)}, values.options().dtype(type));
  padded.slice(0, 0, count).copy_(values);
  padded.slice(0, count).zero_();
  return padded;
}

// What the logits' gradient is made of, for c rows from `begin` on: gradients that arrive at all log-probabilities and,
// where `entropy_grad_c` is defined, at the rows' entropies.
struct HeadGradients {
  TargetsOfRows targets;
  int64_t begin = 0;
  double temperature = 1, entropy_temperature = 1;
  at::Tensor grad_A, entropy_grad_c;
  at::Tensor entropy_c;
  at::Tensor log_sum_c, entropy_log_sum_c;  // ByRows
};

template <typename Element>
void WriteLogitsGradient(const at::Tensor& logits_cV, const HeadGradients& of, const at::Tensor& out) {
  const int64_t V = logits_cV.size(1);
  const auto* logits = logits_cV.const_data_ptr<float>();
  const auto* log_sums = of.log_sum_c.const_data_ptr<float>();
  const auto* grads = of.grad_A.const_data_ptr<float>();
  EntropyGradient entropy = {.temperature = static_cast<float>(of.entropy_temperature)};
  if (of.entropy_grad_c.defined()) {
    entropy.entropies = of.entropy_c.const_data_ptr<float>();
    entropy.log_sums = of.entropy_log_sum_c.const_data_ptr<float>();
    entropy.gradients = of.entropy_grad_c.const_data_ptr<float>();
  }
  WithRowTargets(of.targets, of.begin, [&](const RowTargets& targets) {
    if (logits_cV.is_cuda()) {
      StartOn(logits_cV.device(), kRows, [&](void* stream) {
        return LaunchLogSoftmaxRowsGradient(logits, targets, static_cast<float>(of.temperature), log_sums, grads,
                                            of.entropy_grad_c.defined() ? &entropy : nullptr, logits_cV.size(0), V,
                                            out.scalar_type() == at::kFloat ? RowElement::kFloat : RowElement::kBf16,
                                            out.mutable_data_ptr(), stream);
      });
      return;
    }
    auto* gradients = static_cast<Element*>(out.mutable_data_ptr());
    at::parallel_for(0, logits_cV.size(0), 1, [&](int64_t first, int64_t last) {
      EntropyGradient part = entropy;
      if (of.entropy_grad_c.defined()) {
        part.entropies += first;
        part.log_sums += first;
        part.gradients += first;
      }
      LogSoftmaxRowsGradient(logits + first * V, targets.From(first), static_cast<float>(of.temperature),
                             log_sums + first, grads, of.entropy_grad_c.defined() ? &part : nullptr, last - first, V,
                             gradients + first * V);
    });
  });
}

// The same by LibTorch's operators, for the rows [first, last) of the c, in the logits' place.
void OverwriteWithGradient(const at::Tensor& logits_cV, const HeadGradients& of, int64_t first, int64_t last) {
  const auto part = [&](const at::Tensor& tensor_c) { return tensor_c.slice(0, first, last).unsqueeze(1); };
  at::Tensor logits = logits_cV.slice(0, first, last);
  at::Tensor of_entropy;
  if (of.entropy_grad_c.defined()) {
    const at::Tensor log_probability = LogSoftmax(logits, of.entropy_temperature);
    of_entropy = (log_probability + part(of.entropy_c)).mul_(log_probability.exp());
    of_entropy.mul_(part(of.entropy_grad_c) / of.entropy_temperature);
  }
  const int64_t begin = of.begin + first, end = of.begin + last;
  const at::Tensor grad = of.grad_A.slice(0, of.targets.Begin(begin), of.targets.Begin(end)) / of.temperature;
  const at::Tensor sums = at::zeros({last - first}, grad.options()).index_add_(0, of.targets.RowsOf(begin, end), grad);
  at::mul_out(logits, LogSoftmax(logits, of.temperature).exp_(), sums.neg_().unsqueeze(1));
  logits.put_(Places(of.targets, begin, end, logits.size(1)), grad, /*accumulate=*/true);
  if (of_entropy.defined()) logits.sub_(of_entropy);
}

// d log_prob / d logits = (onehot - softmax) / temperature, summed over a row's targets, and d entropy / d logits = -p
// (log p + entropy) / temperature (each softmax, p, at its own temperature), times the gradients that arrive; of
// `type`, which is the logits' own or bf16. In the logits' place, or else with rows of zeros behind them
// (row_padding.h), which add nothing to products.
at::Tensor LogitsGradient(const at::Tensor& logits_cV, const HeadGradients& of, at::ScalarType type) {
  const int64_t c = logits_cV.size(0), V = logits_cV.size(1);
  const bool in_place = type == logits_cV.scalar_type();
  if (!ByRows(logits_cV, logits_cV.scalar_type())) {
    InParts(c, PartTokens(c), [&](int64_t first, int64_t last) { OverwriteWithGradient(logits_cV, of, first, last); });
    return in_place ? logits_cV : NarrowPadded(logits_cV, PaddedRows(c), type);
  }
  const at::Tensor all = logits_cV.contiguous();
  if (in_place) {
    if (!all.is_meta()) WriteLogitsGradient<float>(all, of, all);
    return all;
  }
  at::Tensor padded = at::empty({PaddedRows(c), V}, all.options().dtype(type));
  if (!all.is_meta()) WriteLogitsGradient<uint16_t>(all, of, padded);
  padded.slice(0, c).zero_();
  return padded;
}

// What is saved between the passes is what came in, a number a token, and the last chunk's logits, with which backward
// begins: either pass holds as much. Those of the chunks before it are made anew.
class LogProbsFunction : public torch::autograd::Function<LogProbsFunction> {
 public:
  // Log-probabilities [A], entropies [U].
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden_UD, const at::Tensor& head_VD,
                               const TargetsOfRows& targets, double temperature, const EntropyRequest& entropy,
                               int64_t chunk_rows, bool keeps_logits) {
    const int64_t U = hidden_UD.size(0);
    const at::TensorOptions wide = hidden_UD.options().dtype(WideType(hidden_UD.scalar_type()));
    const bool by_rows = ByRows(hidden_UD, WideType(hidden_UD.scalar_type()));
    if (by_rows && targets.ids_A.is_cpu()) CheckTargets(targets.ids_A, targets.vocabulary);
    at::Tensor log_prob_A = at::empty({targets.ids_A.size(0)}, wide);
    at::Tensor log_sum_U = at::empty({by_rows ? U : 0}, wide);
    at::Tensor entropy_U = at::empty({entropy.wanted ? U : 0}, wide);
    at::Tensor entropy_log_sum_U = at::empty({by_rows && entropy.wanted ? U : 0}, wide);
    for (const auto& [begin, end] : Chunks(U, chunk_rows)) {
      const at::Tensor logits = VocabularyLogits(hidden_UD.slice(0, begin, end), head_VD, targets.vocabulary);
      if (keeps_logits && end == U) context->saved_data[kLastLogits] = logits;
      TakeLogProbs(logits, targets, begin, temperature, entropy.temperature,
                   {.log_prob_A = log_prob_A,
                    .entropy_c = entropy_U.slice(0, begin, end),
                    .log_sum_c = log_sum_U.slice(0, begin, end),
                    .entropy_log_sum_c = entropy_log_sum_U.slice(0, begin, end)});
    }
    const bool differentiable = entropy.wanted && entropy.differentiable;
    variable_list saved = {hidden_UD, head_VD, targets.ids_A, log_sum_U};
    if (differentiable) {
      saved.push_back(entropy_U);
      saved.push_back(entropy_log_sum_U);
    }
    context->save_for_backward(saved);
    if (targets.starts_U.defined()) context->saved_data[kStarts] = targets.starts_U;
    context->saved_data["vocabulary"] = targets.vocabulary;
    context->saved_data["temperature"] = temperature;
    context->saved_data["entropy_temperature"] = entropy.temperature;
    context->saved_data["chunk_rows"] = chunk_rows;
    if (!differentiable) context->mark_non_differentiable({entropy_U});
    return {log_prob_A, entropy_U};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &hidden_UD = saved[0], &head_VD = saved[1], &log_sum_U = saved[3];
    HeadGradients all;
    all.targets.ids_A = saved[2];
    if (const auto starts = context->saved_data.find(kStarts); starts != context->saved_data.end()) {
      all.targets.starts_U = starts->second.toTensor();
    }
    all.targets.vocabulary = context->saved_data["vocabulary"].toInt();
    all.temperature = context->saved_data["temperature"].toDouble();
    all.entropy_temperature = context->saved_data["entropy_temperature"].toDouble();
    all.grad_A = grads[0].contiguous();
    const int64_t chunk_rows = context->saved_data["chunk_rows"].toInt();
    const int64_t U = hidden_UD.size(0);
    const at::Tensor entropy_grad_U = saved.size() > 4 ? grads[1].contiguous() : at::Tensor();
    at::Tensor hidden_grad_UD, head_grad_VD;
    if (context->needs_input_grad(0)) hidden_grad_UD = at::empty_like(hidden_UD);
    if (context->needs_input_grad(1)) {
      // A sum over chunks is taken in fp32.
      const at::ScalarType type = U <= chunk_rows ? head_VD.scalar_type() : WideType(head_VD.scalar_type());
      head_grad_VD = at::empty(head_VD.sizes(), head_VD.options().dtype(type));
      if (U == 0) head_grad_VD.zero_();
    }
    for (const auto& [begin, end] : std::views::reverse(Chunks(U, chunk_rows))) {
      const at::Tensor hidden = hidden_UD.slice(0, begin, end);
      HeadGradients part = all;
      part.begin = begin;
      part.log_sum_c = log_sum_U.slice(0, begin, end);
      if (entropy_grad_U.defined()) {
        part.entropy_grad_c = entropy_grad_U.slice(0, begin, end);
        part.entropy_c = saved[4].slice(0, begin, end);
        part.entropy_log_sum_c = saved[5].slice(0, begin, end);
      }
      const at::Tensor logits_grad =
          LogitsGradient(end == U ? TakeLastLogits(context, hidden, head_VD)
                                  : VocabularyLogits(hidden, head_VD, all.targets.vocabulary),
                         part, hidden_UD.scalar_type());
      const int64_t rows = logits_grad.size(0);
      AddHeadGradient(logits_grad, rows == end - begin ? hidden : NarrowPadded(hidden, rows, hidden.scalar_type()),
                      head_VD, begin, end, /*adds=*/end < U, &hidden_grad_UD, &head_grad_VD);
    }
    if (head_grad_VD.defined()) head_grad_VD = head_grad_VD.to(head_VD.scalar_type());
    variable_list all_grads(7);
    all_grads[0] = hidden_grad_UD;
    all_grads[1] = head_grad_VD;
    return all_grads;
  }

 private:
  static constexpr char kLastLogits[] = "last_logits";
  static constexpr char kStarts[] = "starts";

  // Gives up what forward has kept. It is no longer there where a graph is gone through once more.
  static at::Tensor TakeLastLogits(AutogradContext* context, const at::Tensor& hidden_cD, const at::Tensor& head_VD) {
    const auto kept = context->saved_data.find(kLastLogits);
    if (kept == context->saved_data.end()) {
      return VocabularyLogits(hidden_cD, head_VD, context->saved_data["vocabulary"].toInt());
    }
    at::Tensor logits = kept->second.toTensor();
    context->saved_data.erase(kept);
    return logits;
  }

  // Of rows [begin, end), from the gradient of their logits; there may be rows of zeros behind them. The head's is
  // written or added. What is not asked for is undefined.
  static void AddHeadGradient(const at::Tensor& logits_grad_cV, const at::Tensor& hidden_cD, const at::Tensor& head_VD,
                              int64_t begin, int64_t end, bool adds, at::Tensor* hidden_grad_UD,
                              at::Tensor* head_grad_VD) {
    if (hidden_grad_UD->defined()) {
      hidden_grad_UD->slice(0, begin, end).copy_(GradientProduct(logits_grad_cV, head_VD).slice(0, 0, end - begin));
    }
    if (!head_grad_VD->defined()) return;
    if (head_VD.scalar_type() == head_grad_VD->scalar_type()) {
      if (adds) {
        AddGradientProduct(logits_grad_cV.t(), hidden_cD, head_grad_VD);
      } else {
        GradientProductInto(logits_grad_cV.t(), hidden_cD, head_grad_VD);
      }
      return;
    }
    if (HasWideProducts(logits_grad_cV)) {
      WideProductInto(logits_grad_cV.t(), hidden_cD, adds, head_grad_VD);
      return;
    }
    InParts(head_VD.size(0), RowsWithin(kHeadRowsBytes, head_VD.size(1), head_VD.scalar_type()),
            [&](int64_t first, int64_t last) {
              at::Tensor sum = head_grad_VD->slice(0, first, last);
              const at::Tensor part = GradientProduct(logits_grad_cV.slice(1, first, last).t(), hidden_cD);
              if (adds) {
                sum.add_(part);
              } else {
                sum.copy_(part);
              }
            });
  }
};

}  // namespace

// LibTorch's product of bf16 matrices would come out as bf16: logits of usual size would move in steps of 1/8, and
// log-probabilities with them.
at::Tensor VocabularyLogits(const at::Tensor& hidden_TD, const at::Tensor& head_VD, int64_t vocabulary) {
  at::Tensor logits_TV = WideProduct(hidden_TD, head_VD);
  if (vocabulary < logits_TV.size(1)) logits_TV.slice(1, vocabulary).fill_(kNoTokenLogit);
  return logits_TV;
}

HeadTargets MakeHeadTargets(const std::vector<int64_t>& rows, const std::vector<int64_t>& ids, at::Device device) {
  QUARTET_CHECK(rows.size() == ids.size()) << rows.size() << ", " << ids.size();
  const auto on_device = [device](const std::vector<int64_t>& values) {
    return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device);
  };
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a] < rows[b]; });
  std::vector<int64_t> own_rows, sorted_ids, starts, places(rows.size()), row_places(rows.size());
  for (const size_t target : order) {
    if (own_rows.empty() || own_rows.back() != rows[target]) {
      own_rows.push_back(rows[target]);
      starts.push_back(static_cast<int64_t>(sorted_ids.size()));
    }
    places[target] = static_cast<int64_t>(sorted_ids.size());
    row_places[target] = static_cast<int64_t>(own_rows.size()) - 1;
    sorted_ids.push_back(ids[target]);
  }
  if (own_rows.size() == rows.size()) return {.rows_U = on_device(rows), .ids_A = on_device(ids)};
  starts.push_back(static_cast<int64_t>(sorted_ids.size()));
  return {.rows_U = on_device(own_rows),
          .ids_A = on_device(sorted_ids),
          .starts_U = at::tensor(starts, at::TensorOptions().dtype(at::kLong)),
          .places_A = on_device(places),
          .row_places_A = on_device(row_places)};
}

TokenLogProbs ChunkedLogProbs(const at::Tensor& hidden_TD, const at::Tensor& head_VD, const HeadTargets& targets,
                              double temperature, const EntropyRequest& entropy, int64_t chunk_bytes) {
  QUARTET_CHECK(temperature > 0 && chunk_bytes > 0) << temperature << ", " << chunk_bytes;
  QUARTET_CHECK(entropy.temperature > 0) << entropy.temperature;
  const int64_t chunk_rows = RowsWithin(chunk_bytes, head_VD.size(0), WideType(head_VD.scalar_type()));
  const int64_t vocabulary = targets.vocabulary > 0 ? targets.vocabulary : head_VD.size(0);
  const at::Tensor hidden_UD = targets.rows_U.defined() ? hidden_TD.index_select(0, targets.rows_U) : hidden_TD;
  const bool has_backward = at::GradMode::is_enabled() && (hidden_UD.requires_grad() || head_VD.requires_grad());
  const variable_list out = LogProbsFunction::apply(
      hidden_UD, head_VD, TargetsOfRows{targets.ids_A.contiguous(), targets.starts_U, vocabulary}, temperature, entropy,
      chunk_rows, /*keeps_logits=*/has_backward);
  const auto in_order = [&](const at::Tensor& values, const at::Tensor& places_A) {
    return targets.starts_U.defined() ? values.index_select(0, places_A) : values;
  };
  return {.log_prob_T = in_order(out[0], targets.places_A),
          .entropy_T = entropy.wanted ? in_order(out[1], targets.row_places_A) : at::Tensor()};
}

TokenLogProbs ChunkedLogProbs(const at::Tensor& hidden_TD, const at::Tensor& head_VD, const at::Tensor& targets_T,
                              double temperature, const EntropyRequest& entropy, int64_t chunk_bytes) {
  return ChunkedLogProbs(hidden_TD, head_VD, HeadTargets{.ids_A = targets_T}, temperature, entropy, chunk_bytes);
}

}  // namespace quartet
