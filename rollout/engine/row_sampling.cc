#include "rollout/engine/row_sampling.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "absl/status/status.h"
#include "core/hardware/parallel.h"
#include "core/kernels/cuda/draw_rows.h"
#include "core/kernels/cuda/present_stream.h"
#include "core/memory/accounted_tensor.h"

namespace quartet {
namespace {

bool IsForGpu(const SamplingRule& rule, const SamplingHistory& history) {
  const bool penalties = rule.repetition_penalty != 1 || rule.presence_penalty != 0 || rule.frequency_penalty != 0;
  const auto edits = static_cast<int64_t>(history.forbidden.size() + rule.logit_bias.size());
  return !penalties && edits <= kMostEditsOfRow && rule.alternatives <= 0;
}

// What a row is drawn by, with its edits behind those of other rows.
RowToDraw RowOf(const SamplingRule& rule, const SamplingHistory& history, int64_t vocabulary,
                std::vector<LogitEdit>* edits) {
  RowToDraw row = {.temperature = rule.greedy() ? 0 : rule.temperature,
                   .log_prob_temperature = rule.log_prob_temperature(),
                   .top_k = rule.top_k < vocabulary ? std::max(rule.top_k, 0) : 0,
                   .top_p = rule.top_p,
                   .min_p = rule.min_p,
                   .edits_begin = static_cast<int32_t>(edits->size())};
  for (const int32_t id : history.forbidden) edits->push_back({id, -std::numeric_limits<float>::infinity()});
  for (const auto& [id, bias] : rule.logit_bias) edits->push_back({id, bias});
  row.edits_end = static_cast<int32_t>(edits->size());
  return row;
}

// int32 words of `values` on `device`.
template <typename Value>
at::Tensor WordsOn(at::Device device, std::vector<Value>* values) {
  const auto words = static_cast<int64_t>(values->size() * sizeof(Value) / sizeof(int32_t));
  return at::from_blob(values->data(), {words}, at::kInt).to(device, at::kInt, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

RowSampling::RowSampling(int64_t vocab_size, int64_t vocabulary, ShareExchange* exchange, Ledger* ledger)
    : vocab_size_(vocab_size),
      vocabulary_(vocabulary),
      exchange_(exchange),
      ledger_(ledger),
      samplers_(at::get_num_threads()) {}

std::vector<absl::StatusOr<SampledToken>> RowSampling::Score(absl::Span<const PromptToken> tokens,
                                                             const at::Tensor& logits, const Calls& calls) {
  std::vector<absl::StatusOr<SampledToken>> scored(tokens.size(), SampledToken{});
  const auto count = logits.is_meta() ? 0 : static_cast<int64_t>(tokens.size());
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    Sampler& sampler = samplers_[at::get_thread_num()];
    std::vector<float> joined;
    for (int64_t i = begin; i < end; ++i) {
      const RunningCall& call = calls.at(tokens[i].sequence->call);
      scored[i] = sampler.Score(Row(logits, i, &joined), call.rule(), tokens[i].sequence->ids[tokens[i].position],
                                call.sampling().prompt_logprobs());
    }
  });
  return scored;
}

std::vector<absl::StatusOr<SampledToken>> RowSampling::DrawAll(const std::vector<Draw>& draws, const at::Tensor& logits,
                                                               const Calls& calls) {
  if (draws.empty()) return {};
  if (logits.is_cuda()) return DrawOnGpu(draws, logits, calls);
  std::vector<absl::StatusOr<SampledToken>> drawn(draws.size(), SampledToken{});
  const bool draw = !logits.is_meta();
  at::parallel_for(0, static_cast<int64_t>(draws.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && draw; ++i) {
      const bool wanted = calls.at(draws[i].sequence->call).sampling().max_new_tokens() > 0;
      if (wanted && (exchange_ == nullptr || exchange_->IsMine(i))) drawn[i] = DrawToken(draws[i], logits, calls);
    }
  });
  if (exchange_ == nullptr) return drawn;
  int32_t alternatives = 0;
  for (const Draw& one : draws) alternatives = std::max(alternatives, calls.at(one.sequence->call).rule().alternatives);
  for (const size_t i : exchange_->ShareDrawn(alternatives, &drawn)) {
    if (!draw) continue;
    drawn[i] = DrawToken(draws[i], logits, calls);  // to say the same of it
    if (drawn[i].ok()) drawn[i] = absl::InternalError("another rank could not draw from the logits");
  }
  return drawn;
}

// [N, vocabulary], or with an exchange [ranks, N, its part].
at::Tensor RowSampling::CopyOfRow(const at::Tensor& logits, int64_t row) {
  return logits.slice(/*dim=*/-2, row, row + 1).clone(at::MemoryFormat::Contiguous);
}

// Rows that the CPU has to draw from are brought there, each once.
std::vector<absl::StatusOr<SampledToken>> RowSampling::DrawOnGpu(const std::vector<Draw>& draws,
                                                                 const at::Tensor& logits, const Calls& calls) {
  std::vector<absl::StatusOr<SampledToken>> drawn(draws.size(), SampledToken{});
  std::vector<RowToDraw> here;
  std::vector<LogitEdit> edits;
  bool cuts = false;
  std::vector<size_t> drawn_here;
  std::vector<Draw> elsewhere;
  std::vector<size_t> drawn_elsewhere;
  std::vector<int64_t> rows_elsewhere;
  for (size_t i = 0; i < draws.size(); ++i) {
    const RunningCall& call = calls.at(draws[i].sequence->call);
    if (call.sampling().max_new_tokens() == 0) continue;
    const SamplingRule& rule = call.rule();
    if (const SamplingHistory history = call.HistoryOf(*draws[i].sequence); IsForGpu(rule, history)) {
      drawn_here.push_back(i);
      RowToDraw& row = here.emplace_back(RowOf(rule, history, vocabulary_, &edits));
      row.noise_key = call.NoiseKeyOf(*draws[i].sequence);
      row.row = static_cast<int32_t>(draws[i].row);
      cuts |= row.top_k > 0 || row.top_p < 1;
    } else {
      drawn_elsewhere.push_back(i);
      // Those of one row come one behind the other.
      if (rows_elsewhere.empty() || rows_elsewhere.back() != draws[i].row) rows_elsewhere.push_back(draws[i].row);
      elsewhere.push_back({draws[i].sequence, std::ssize(rows_elsewhere) - 1});
    }
  }
  const MemoryScope scope(ledger_, MemoryCategory::kLogits);
  if (!here.empty()) {
    const at::Tensor rows = WordsOn(logits.device(), &here), of_rows = WordsOn(logits.device(), &edits);
    std::vector<DrawnRow> found(here.size());
    at::Tensor there = WordsOn(logits.device(), &found);
    const at::Tensor all = logits.contiguous();
    const auto count = static_cast<int64_t>(here.size());
    const at::Tensor scratch = at::empty({DrawRowsScratch(vocab_size_, count) / static_cast<int64_t>(sizeof(double))},
                                         logits.options().dtype(at::kDouble));
    StartOn(logits.device(), "drawing tokens", [&](void* stream) {
      return LaunchDrawRows(all.const_data_ptr<float>(), vocab_size_,
                            static_cast<const RowToDraw*>(rows.const_data_ptr()),
                            static_cast<const LogitEdit*>(of_rows.const_data_ptr()), count, cuts,
                            scratch.mutable_data_ptr(), static_cast<DrawnRow*>(there.mutable_data_ptr()), stream);
    });
    at::from_blob(found.data(), {there.numel()}, at::kInt).copy_(there);
    for (size_t i = 0; i < found.size(); ++i) {
      if (!std::isfinite(found[i].largest)) {
        drawn[drawn_here[i]] = Sampler::NotFinite(found[i].largest);
      } else if (!std::isfinite(found[i].largest_edited) || found[i].id >= vocabulary_) {
        // Behind the tokens are logits so low that one of them is drawn where no token can be.
        drawn[drawn_here[i]] = Sampler::NothingLeft();
      } else {
        drawn[drawn_here[i]] = SampledToken{.id = found[i].id,
                                            .log_prob = found[i].log_prob,
                                            .sampled_log_prob = found[i].sampled_log_prob,
                                            .alternatives = {}};
      }
    }
  }
  if (!elsewhere.empty()) {
    std::vector<int64_t>& rows = rows_elsewhere;
    const at::Tensor some = at::index_select(
        logits, 0, at::from_blob(rows.data(), {static_cast<int64_t>(rows.size())}, at::kLong).to(logits.device()));
    const std::vector<absl::StatusOr<SampledToken>> found =
        DrawAll(elsewhere, HostCopyOf(ledger_, MemoryCategory::kLogits, some), calls);
    for (size_t i = 0; i < found.size(); ++i) drawn[drawn_elsewhere[i]] = found[i];
  }
  return drawn;
}

// On any thread of LibTorch's.
absl::StatusOr<SampledToken> RowSampling::DrawToken(const Draw& draw, const at::Tensor& logits, const Calls& calls) {
  const RunningCall& call = calls.at(draw.sequence->call);
  std::vector<float> joined;
  return samplers_[at::get_thread_num()].Sample(Row(logits, draw.row, &joined), call.rule(),
                                                call.HistoryOf(*draw.sequence), call.NoiseKeyOf(*draw.sequence));
}

// The tokens' part of a row of logits as a forward gives them, where they are or in `joined`. Any thread.
absl::Span<const float> RowSampling::Row(const at::Tensor& logits, int64_t row, std::vector<float>* joined) const {
  if (exchange_ != nullptr) {
    exchange_->CopyRow(logits, row, joined);
    return absl::MakeConstSpan(joined->data(), vocabulary_);
  }
  return absl::MakeConstSpan(logits.const_data_ptr<float>() + row * vocab_size_, vocabulary_);
}

}  // namespace quartet
