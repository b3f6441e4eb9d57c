// How many rows matrix products are given. LibTorch-free.
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/division.h"

namespace quartet {

// At least `rows`: one of eight sizes in each power of two, so at most an eighth more.
//
// Kernels are built for a shape and kept (oneDNN's for bf16: about 0.7 MB each, a dozen for each number of tokens in
// training), so that a process that is given every number of tokens grows by gigabytes, and builds most kernels for one
// use.
inline int64_t PaddedRows(int64_t rows) {
  if (rows <= 8) return rows;
  const int64_t step = int64_t{1} << (std::bit_width(static_cast<uint64_t>(rows - 1)) - 4);
  return RoundUp(rows, step);
}

}  // namespace quartet
