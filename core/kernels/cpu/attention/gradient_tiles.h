// How the gradients of attention are made of tiles: what attention_gradient.cc walks over, and what works on each.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/division.h"
#include "core/kernels/cpu/attention/attention_gradient.h"

namespace quartet {

inline constexpr int64_t kQueryRows = 32;
inline constexpr int64_t kKeyRows = 64;
static_assert(kKeyRows % kQueryRows == 0, "the first tile of queries that sees a tile of keys starts with it");

// A part of scratch memory after the other.
class Scratch {
 public:
  explicit Scratch(float* begin) : next_(begin) {}
  float* Take(int64_t count) {
    float* taken = next_;
    next_ += count;
    return taken;
  }

 private:
  float* next_;
};

// Queries of one head that meet the keys that were read.
struct QueryTile {
  int64_t head = 0;   // of the group
  int64_t first = 0;  // row
  int64_t count = 0;  // at most kQueryRows
  // Row r sees the first `visible` + r * `more` of the keys, all in `columns`, a multiple of 16.
  int64_t visible = 0, more = 0, columns = 0;
  bool of_keys = false;  // adds to the sums of the keys
  int64_t own_row =
      -1;  // adds to the sums of the task's own queries from here on, a multiple of kQueryRows; -1: to none
};

// Works in scratch memory of AttentionGradientScratch. Sums begin with zero.
class GradientTiles {
 public:
  virtual ~GradientTiles() = default;
  // Rows [first, first + used) are the keys and values now; at most kKeyRows.
  virtual void ReadKeys(int64_t first, int64_t used) = 0;
  virtual void Meet(const QueryTile& queries) = 0;
  virtual void StartKeySums() = 0;
  virtual void StoreKeySums(int64_t first, int64_t used) = 0;
  virtual void StartQuerySums() = 0;
  virtual void StoreQuerySums(int64_t first, int64_t count) = 0;
};

// By AMX (HasAmxAttention). `own_rows`: of the task.
std::unique_ptr<GradientTiles> MakeAmxGradientTiles(const AttentionGradientHead<uint16_t>& head, int64_t own_rows,
                                                    float* scratch);

}  // namespace quartet
