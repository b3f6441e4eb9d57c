#include "rollout/engine/share_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/division.h"
#include "core/model/decoder/decoder.h"

namespace quartet {

ShareExchange::ShareExchange(const ModelConfig& config, ProcessGroup* group, at::Device device)
    : config_(config), group_(group), device_(device) {
  for (int rank = 0; rank < group->size(); ++rank) {
    rows_.push_back(VocabularyRowsOf(config, {rank, group->size()}));
    widest_ = std::max(widest_, rows_.back().count);
  }
}

at::Tensor ShareExchange::Stem(const at::Tensor& embedding, const std::vector<int64_t>& ids) const {
  const VocabularyRows mine = rows_[group_->rank()];
  const auto is_mine = [&](int64_t id) { return id >= mine.begin && id < mine.begin + mine.count; };
  std::vector<int64_t> rows, foreign;
  for (size_t t = 0; t < ids.size(); ++t) {
    rows.push_back(is_mine(ids[t]) ? ids[t] - mine.begin : 0);
    if (!is_mine(ids[t])) foreign.push_back(static_cast<int64_t>(t));
  }
  const auto as_tensor = [](std::vector<int64_t>& values) {
    return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kLong);
  };
  at::Tensor hidden_TD = quartet::Stem(config_, embedding, as_tensor(rows).to(embedding.device()));
  // One rank has a token's embedding, the others zero: the sum is exact in any type.
  if (!hidden_TD.is_meta()) hidden_TD.index_fill_(0, as_tensor(foreign).to(embedding.device()), 0);
  Sum(hidden_TD);
  return hidden_TD;
}

void ShareExchange::Sum(const at::Tensor& partial) const { group_->AllReduceSum(partial)->Wait(); }

// [R, N, widest_], rows of narrower parts filled up with what happens to be there.
at::Tensor ShareExchange::GatherLogits(const at::Tensor& logits) const {
  const int64_t N = logits.size(0);
  const at::Tensor gathered = at::empty({group_->size(), N, widest_}, logits.options());
  gathered.select(0, group_->rank()).slice(1, 0, logits.size(1)).copy_(logits);
  group_->AllGatherInPlace(gathered.view({-1}))->Wait();
  return gathered;
}

void ShareExchange::CopyRow(const at::Tensor& gathered, int64_t row, std::vector<float>* logits_V) const {
  logits_V->resize(rows_.back().begin + rows_.back().count);
  const auto* from = gathered.const_data_ptr<float>();
  const int64_t N = gathered.size(1);
  for (size_t rank = 0; rank < rows_.size(); ++rank) {
    std::copy_n(from + (static_cast<int64_t>(rank) * N + row) * widest_, rows_[rank].count,
                logits_V->begin() + rows_[rank].begin);
  }
}

// A token as integers: its id (-1: could not be drawn), the bits of its log-probabilities, and of each alternative the
// id (-1: there are no more) and the bits of its log-probability.
std::vector<size_t> ShareExchange::ShareDrawn(int32_t alternatives,
                                              std::vector<absl::StatusOr<SampledToken>>* drawn) const {
  const auto size = static_cast<size_t>(group_->size()), rank = static_cast<size_t>(group_->rank());
  const size_t stride = 3 + 2 * static_cast<size_t>(alternatives), part = CeilDivide(drawn->size(), size) * stride;
  std::vector<int32_t> all(size * part, -1);
  const auto place = [&](size_t i) { return all.data() + i % size * part + i / size * stride; };
  for (size_t i = rank; i < drawn->size(); i += size) {
    if (!(*drawn)[i].ok()) continue;
    const SampledToken& token = *(*drawn)[i];
    int32_t* to = place(i);
    *to++ = token.id;
    *to++ = std::bit_cast<int32_t>(token.log_prob);
    *to++ = std::bit_cast<int32_t>(token.sampled_log_prob);
    for (const auto& [id, log_prob] : token.alternatives) {
      *to++ = id;
      *to++ = std::bit_cast<int32_t>(log_prob);
    }
  }
  // On the device that the group's collectives are of, and back.
  const at::Tensor here = at::from_blob(all.data(), {static_cast<int64_t>(all.size())}, at::kInt);
  const at::Tensor there = here.to(device_);
  group_->AllGatherInPlace(there)->Wait();
  if (!there.is_meta() && !there.is_same(here)) here.copy_(there);
  std::vector<size_t> missing;
  for (size_t i = 0; i < drawn->size(); ++i) {
    const int32_t* from = place(i);
    if (IsMine(i)) continue;
    if (from[0] < 0) {
      missing.push_back(i);
      continue;
    }
    SampledToken token;
    token.id = from[0];
    token.log_prob = std::bit_cast<float>(from[1]);
    token.sampled_log_prob = std::bit_cast<float>(from[2]);
    for (int32_t a = 0; a < alternatives && from[3 + 2 * a] >= 0; ++a) {
      token.alternatives.emplace_back(from[3 + 2 * a], std::bit_cast<float>(from[4 + 2 * a]));
    }
    (*drawn)[i] = std::move(token);
  }
  return missing;
}

}  // namespace quartet
