// What the ranks of a tensor-parallel engine (core/model/tensor_parallel.h) do together. Each call is a collective, and
// gives all ranks the same bits.
//
// R ranks, T tokens, N rows of logits, D hidden, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/comm/process_group.h"
#include "core/model/model_config.h"
#include "core/model/tensor_parallel.h"
#include "rollout/engine/sampling/sampler.h"

namespace quartet {

// Calls throw as collectives do. One thread, but for CopyRow.
class ShareExchange {
 public:
  // `config` and `group`, of `device`, outlive it.
  ShareExchange(const ModelConfig& config, ProcessGroup* group, at::Device device);

  // What the first block reads of `ids`, [T, D], from the ranks' rows of the embedding.
  at::Tensor Stem(const at::Tensor& embedding, const std::vector<int64_t>& ids) const;

  // Adds the ranks' tensors into the one given.
  void Sum(const at::Tensor& partial) const;

  // From the logits that this rank has, fp32 [N, its rows of the vocabulary], those of all: opaque, for CopyRow.
  at::Tensor GatherLogits(const at::Tensor& logits) const;
  // One row of the logits, all of the vocabulary, from `gathered` on the CPU. Any thread; no collective.
  void CopyRow(const at::Tensor& gathered, int64_t row, std::vector<float>* logits_V) const;

  // Of several tokens that are to be drawn, each rank draws every R-th: the i-th is this rank's.
  bool IsMine(size_t i) const { return static_cast<int>(i % group_->size()) == group_->rank(); }
  // Brings to each rank what the others have drawn, of which each has at most `alternatives` alternatives. Returns
  // those of the others' that could not be drawn; of these `drawn` keeps what it was.
  std::vector<size_t> ShareDrawn(int32_t alternatives, std::vector<absl::StatusOr<SampledToken>>* drawn) const;

 private:
  const ModelConfig& config_;
  ProcessGroup* const group_;
  const at::Device device_;
  std::vector<VocabularyRows> rows_;  // of each rank
  int64_t widest_ = 0;
};

}  // namespace quartet
