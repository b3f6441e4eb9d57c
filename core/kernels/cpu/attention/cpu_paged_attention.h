// Causal attention of a batch of sequences over a paged cache, spread over threads: training's, scoring's and
// generation's, so that all three make the same additions in the same order for each token, whatever is around it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/kernels/cpu/attention/paged_attention_kernel.h"
#include "core/kernels/cpu/attention/sequence_rows.h"

namespace quartet {

// How the work of a forward's attention is divided, which is the same in each layer. CPU, and the meta device.
class CpuPagedAttention {
 public:
  // Where the key and value of a row go.
  struct Write {
    int64_t row = 0;
    int64_t block = 0;
    int64_t offset = 0;  // in the block
  };
  // What the chunks point to must outlive it. With `writes` these are what is written, before anything is read, and a
  // chunk may see what is another's; without, each chunk's own tokens.
  CpuPagedAttention(const PagedCacheLayout& layout, std::vector<AttentionChunk> chunks, std::vector<Write> writes = {});

  // The chunks' tokens lie end to end in q [T, H, d] (rotated), k and v [T, K, d], of float or bf16. Writes k and v to
  // the cache (elements of q's type, laid out as `layout` says), then gives what each token sees of its own sequence up
  // to itself, [T, H, d]. Rows behind the last chunk's are padding: zeros. No gradient. On the meta device the pointers
  // are not followed.
  //
  // With `log_sums_TH` also the logarithm of each row's sum of e^score, fp32 [T, H], which the gradient needs; not
  // written for padding.
  at::Tensor Attend(void* cache, const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                    at::Tensor* log_sums_TH = nullptr) const;

 private:
  // Chunks [begin, end), which are worked on together: one, or some of one token each whose sequences begin with the
  // same `shared` blocks.
  struct Group {
    size_t begin, end;
    int64_t shared;
  };
  // One key/value head of a group: of all its chunks, or, of a chunk of several tokens, of some from `first` on.
  struct Work {
    Group group;
    int64_t first, head;
  };

  std::vector<Group> Groups(size_t most) const;
  template <typename Element>
  void Attend(Element* cache, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
              float* log_sums) const;

  const PagedCacheLayout layout_;
  const std::vector<AttentionChunk> chunks_;
  const std::vector<Write> writes_;
  std::vector<int64_t> rows_;  // of each chunk's first token, and behind the last
  std::vector<Group> groups_;
  std::vector<Work> works_;
};

struct AttentionGradients {
  at::Tensor q_THd, k_TKd, v_TKd;
};

// The gradients of q, k and v of whole sequences, given what CpuPagedAttention gave and its gradient. CPU and, without
// computing, the meta device.
AttentionGradients CpuAttentionGradient(const SequenceRows& rows, const at::Tensor& q_THd, const at::Tensor& k_TKd,
                                        const at::Tensor& v_TKd, const at::Tensor& out_THd,
                                        const at::Tensor& log_sums_TH, const at::Tensor& out_gradient_THd);

}  // namespace quartet
