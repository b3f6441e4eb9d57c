// Attention over a key/value cache that is cut into blocks, on the CPU. LibTorch-free; fp32 accumulation.
//
// d head dimension, K key/value heads, H = K * G query heads (head h reads key/value head h / G), S block size.
// Elements are float, or uint16_t with the bits of bf16.
#pragma once

#include <cstdint>
#include <vector>

namespace quartet {

// Layout of one layer's part of the cache: block after block, in each head after head, of which first the keys and then
// the values lie, so that what is read one after the other lies so. Keys of a block and head lie [d, S] in fp32 and
// [d / 2, S, 2] in bf16, so that one vector holds one or two dimensions of sixteen keys and scores need no horizontal
// sums. Values lie [S, padded_d] in fp32 and [S / 2, padded_d, 2] in bf16, two keys side by side, as tiles and pairs of
// products take them. Padding has no effect.
struct PagedCacheLayout {
  int64_t block_size = 16;  // a multiple of kBlockSizeMultiple
  int64_t kv_heads = 1;
  int64_t head_dim = 64;  // even

  static constexpr int64_t kBlockSizeMultiple = 16;

  int64_t padded_head_dim() const { return (head_dim + 15) / 16 * 16; }
  // Elements of a block's keys of one head, of keys and values of one, and of all of the block.
  int64_t key_numel() const { return head_dim * block_size; }
  int64_t head_numel() const { return key_numel() + block_size * padded_head_dim(); }
  int64_t block_numel() const { return kv_heads * head_numel(); }
};

// `count` tokens of one sequence, from its position `first` on. Keys and values before `first` are in the cache.
struct AttentionChunk {
  const int32_t* blocks;  // the sequence's block table, long enough for first + count tokens
  int64_t first;
  int64_t count;
};

// Writes one token's rotated key and its value of one head, [d] each, to place `offset` (in [0, S)) of the block's part
// of that head, which starts at `head`.
template <typename Element>
void WriteToCache(const PagedCacheLayout& layout, const Element* key_d, const Element* value_d, int64_t offset,
                  Element* head);

// Some tokens of one sequence, one key/value head.
template <typename Element>
struct PagedAttentionTask {
  // Row of token t and head g of the group: queries + t * token_stride + g * d; likewise outputs.
  const Element* queries = nullptr;
  Element* outputs = nullptr;
  int64_t token_stride = 0;
  // Where not null, the logarithm of the sum of e^score of token t and head g: log_sums[t * log_sum_stride + g].
  float* log_sums = nullptr;
  int64_t log_sum_stride = 0;
  int64_t tokens = 0;
  int64_t group = 1;                // G
  int64_t first_position = 0;       // of token 0; token t sees keys [0, first_position + t]
  const int32_t* blocks = nullptr;  // the sequence's block table
  const Element* cache = nullptr;   // the layer's
  int64_t kv_head = 0;
};

// outputs = softmax(q k^T / sqrt(d)) v. All keys that are seen must have been written; what else the cache holds has no
// effect. `next`, where it is not null: what the same thread will probably be given then; what it reads first may be
// asked for meanwhile. Thread safe for disjoint outputs.
template <typename Element>
void PagedAttend(const PagedCacheLayout& layout, const PagedAttentionTask<Element>& task,
                 const PagedAttentionTask<Element>* next = nullptr);

// PagedAttend of each, with the same bits: tasks of one token, of one head and group, whose sequences have the same
// first `shared` blocks and see all of their keys. Those come from memory once.
template <typename Element>
void PagedAttendTogether(const PagedCacheLayout& layout, const std::vector<PagedAttentionTask<Element>>& tasks,
                         int64_t shared);

}  // namespace quartet
