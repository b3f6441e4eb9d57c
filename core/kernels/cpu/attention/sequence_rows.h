// Where the tokens of a batch of sequences lie, each once where sequences begin alike. LibTorch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace quartet {

struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Sequences whose tokens lie in rows one behind the other. What a sequence begins with as the one before it does need
// not lie there again: the sequences are a tree then, and the tokens that see one (itself, and what continues it) lie
// in one range of rows, from it on.
struct SequenceRows {
  std::vector<int64_t> cu_seqlens = {
      0};  // of the tokens of sequence i that are its own: rows [cu_seqlens[i], cu_seqlens[i + 1])
  // Tokens of sequence i that are not: as many as it shares with sequence i - 1, from the first on. Empty: none of any.
  std::vector<int64_t> shared;

  size_t count() const { return cu_seqlens.empty() ? 0 : cu_seqlens.size() - 1; }
  int64_t rows() const { return cu_seqlens.empty() ? 0 : cu_seqlens.back(); }
  int64_t SharedOf(size_t i) const { return shared.empty() ? 0 : shared[i]; }
  int64_t OwnOf(size_t i) const { return cu_seqlens[i + 1] - cu_seqlens[i]; }
  int64_t LengthOf(size_t i) const { return SharedOf(i) + OwnOf(i); }

  // Whether cu_seqlens do not fall and no sequence shares more than the one before it has.
  bool IsValid() const {
    if (!shared.empty() && shared.size() != count()) return false;
    for (size_t i = 0; i < count(); ++i) {
      if (OwnOf(i) < 0 || SharedOf(i) < 0 || SharedOf(i) > (i == 0 ? 0 : LengthOf(i - 1))) return false;
    }
    return cu_seqlens.empty() || cu_seqlens.front() == 0;
  }
};

// By sequence: where its shared tokens lie, in order. A range begins with the first own token of some sequence.
inline std::vector<std::vector<RowRange>> SharedRanges(const SequenceRows& rows) {
  std::vector<std::vector<RowRange>> all;
  std::vector<RowRange> path;  // all tokens of the sequence before
  for (size_t i = 0; i < rows.count(); ++i) {
    int64_t left = rows.SharedOf(i);
    size_t used = 0;
    while (left > 0) {
      path[used].count = left < path[used].count ? left : path[used].count;
      left -= path[used++].count;
    }
    path.resize(used);
    all.push_back(path);
    if (rows.OwnOf(i) > 0) path.push_back({rows.cu_seqlens[i], rows.OwnOf(i)});
  }
  return all;
}

// Where FlashAttention attends to what sequences share, each has copies of the keys: a batch so many for a row at most.
inline constexpr int64_t kMostKeysOfARow = 2;

// Whether LibTorch's FlashAttention, which a GPU has, takes queries and keys of this type and size.
inline bool FlashAttentionTakes(bool bf16, int64_t head_dim) { return bf16 && head_dim % 8 == 0 && head_dim <= 256; }

}  // namespace quartet
