#include "rollout/engine/row_sampling.h"

#include <algorithm>

#include "absl/status/status.h"
#include "core/hardware/parallel.h"

namespace quartet {

RowSampling::RowSampling(int64_t vocab_size, ShareExchange* exchange)
    : vocab_size_(vocab_size), exchange_(exchange), samplers_(at::get_num_threads()) {}

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

// On any thread of LibTorch's.
absl::StatusOr<SampledToken> RowSampling::DrawToken(const Draw& draw, const at::Tensor& logits, const Calls& calls) {
  const RunningCall& call = calls.at(draw.sequence->call);
  std::vector<float> joined;
  return samplers_[at::get_thread_num()].Sample(Row(logits, draw.row, &joined), call.rule(),
                                                call.HistoryOf(*draw.sequence), call.NoiseKeyOf(*draw.sequence));
}

// A row of logits as a forward gives them, where they are or in `joined`. Any thread.
absl::Span<const float> RowSampling::Row(const at::Tensor& logits, int64_t row, std::vector<float>* joined) const {
  if (exchange_ != nullptr) {
    exchange_->CopyRow(logits, row, joined);
    return *joined;
  }
  return absl::MakeConstSpan(logits.const_data_ptr<float>() + row * vocab_size_, vocab_size_);
}

}  // namespace quartet
