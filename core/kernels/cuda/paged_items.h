// Paged attention cut into items of work that run side by side: what they and a kernel's arguments are. LibTorch-free.
//
// T tokens of a forward, d head dimension, K key/value heads, H = K * G query heads (head h reads key/value head h /
// G), S block size. Elements are uint16_t with the bits of bf16; scores, sums and what they are added up in are fp32.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define QUARTET_DEVICE __device__
#define QUARTET_HOST_DEVICE __host__ __device__
#define QUARTET_UNROLL _Pragma("unroll")
#else
#define QUARTET_DEVICE
#define QUARTET_HOST_DEVICE
#define QUARTET_UNROLL
#endif

namespace quartet {

// Some tokens of one chunk that see some of its keys, for one key/value head each time. Rows of an item are its tokens'
// query heads that share the key/value head: row r is token r / G, head r % G of these.
struct AttentionItem {
  int32_t row;       // of q, of the first token
  int32_t tokens;    // at most kWideRows / G
  int32_t position;  // of the first token; the next ones follow
  int32_t table;     // where the sequence's block table begins in `tables`
  int32_t begin;     // keys [begin, end)
  int32_t end;
  // -1: these are all keys that the tokens see; else, of one token, the place of this part among all parts.
  int32_t part;
};

// An item whose keys were cut: parts [part, part + parts) are to be merged.
struct AttentionMerge {
  int32_t row;
  int32_t tokens;
  int32_t part;
  int32_t parts;
};

struct PagedKernelArgs {
  const uint16_t* q;  // [T, H, d], tokens q_stride elements apart
  int64_t q_stride;
  uint16_t* out;           // [T, H, d]
  const uint16_t* keys;    // of one layer, [slots, K, d]
  const uint16_t* values;  // the same
  const AttentionItem* items;
  int32_t num_items;
  int32_t num_narrow;  // the first items, of at most `narrow_rows` rows
  int32_t narrow_rows;
  const AttentionMerge* merges;
  int32_t num_merges;
  const int32_t* tables;
  // Of each part, key/value head and row, G of these: the sum of values [d]; the largest score, as a power of
  // two, and the sum of 2^(score - largest).
  float* part_sums;
  float* part_scores;  // two of them
  int32_t heads;       // H
  int32_t kv_heads;    // K
  int32_t head_dim;    // d, a multiple of 8, at most kMostHeadDim
  int32_t block_size;  // S
};

constexpr int kMostHeadDim = 256;
constexpr int kNarrowRows = 16;  // of a narrow item, at most; keys of those of one token may be in parts
constexpr int kWideRows = 32;    // of a wide one
constexpr int kPartKeys = 64;    // parts begin at multiples of this

QUARTET_DEVICE inline float FloatOfBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

// To the nearest, ties to even; no NaN comes here.
QUARTET_DEVICE inline uint16_t Bf16OfFloat(float value) {
  uint32_t wide;
  memcpy(&wide, &value, sizeof(wide));
  return static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

// Eight elements.
struct alignas(16) EightElements {
  uint32_t words[4];  // two each, the first in the lower half
};

}  // namespace quartet
