// Causal attention of a batch of sequences over a paged cache, spread over threads: training's, scoring's and
// generation's, so that all three make the same additions in the same order for each token, whatever is around it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/model/paged_attention.h"

namespace quartet {

// The chunks' tokens lie end to end in q [T, H, d] (rotated), k and v [T, K, d], of float or bf16. Writes k and v to
// the cache (elements of q's type, laid out as `layout` says), then gives what each token sees of its own sequence up
// to itself, [T, H, d]. Rows behind the last chunk's are padding: zeros. CPU; no gradient. On the meta device the
// pointers are not followed.
//
// With `log_sums_TH` also the logarithm of each row's sum of e^score, fp32 [T, H], which the gradient needs; not
// written for padding.
at::Tensor AttendInBatch(const PagedCacheLayout& layout, const std::vector<AttentionChunk>& chunks, void* cache,
                         const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                         at::Tensor* log_sums_TH = nullptr);

struct AttentionGradients {
  at::Tensor q_THd, k_TKd, v_TKd;
};

// Of whole sequences, i being tokens [starts[i], starts[i + 1]) of all T: the gradients of q, k and v, given what
// AttendInBatch gave and its gradient. CPU and, without computing, the meta device.
AttentionGradients AttendInBatchGradient(const std::vector<int64_t>& starts, const at::Tensor& q_THd,
                                         const at::Tensor& k_TKd, const at::Tensor& v_TKd, const at::Tensor& out_THd,
                                         const at::Tensor& log_sums_TH, const at::Tensor& out_gradient_THd);

}  // namespace quartet
