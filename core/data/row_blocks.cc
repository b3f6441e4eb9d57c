#include "core/data/row_blocks.h"

#include <algorithm>

#include "core/base/hash.h"

namespace quartet {
namespace {

constexpr size_t kPieceBytes = 4096;

}  // namespace

void RowHash::Add(std::string_view bytes) {
  while (!bytes.empty()) {
    if (piece_.size() == kPieceBytes) {
      hash_ = HashBytes(piece_, hash_);
      piece_.clear();
    }
    const size_t taken = std::min(bytes.size(), kPieceBytes - piece_.size());
    piece_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
  }
}

uint64_t RowHash::Take() {
  while (!piece_.empty() && (piece_.back() == '\n' || piece_.back() == '\r')) piece_.pop_back();
  const uint64_t hash = HashBytes(piece_, hash_);
  piece_.clear();
  hash_ = 0;
  return hash;
}

void RowBlocks::Add(uint64_t row_hash) {
  const auto block = static_cast<size_t>(rows_ / rows_of_a_block_);
  if (block == kMost) {
    for (size_t i = 0; i < kMost / 2; ++i) hashes_[i] = hashes_[2 * i] + hashes_[2 * i + 1];
    hashes_.resize(kMost / 2);
    rows_of_a_block_ *= 2;
    return Add(row_hash);
  }
  if (block == hashes_.size()) hashes_.push_back(0);
  // Rows that have changed places are others, too.
  hashes_[block] +=
      HashBytes({reinterpret_cast<const char*>(&row_hash), sizeof(row_hash)}, static_cast<uint64_t>(rows_));
  ++rows_;
}

int64_t RowBlocks::RowsOfABlock(int64_t rows) {
  int64_t of_a_block = 1;
  while (rows > of_a_block * static_cast<int64_t>(kMost)) of_a_block *= 2;
  return of_a_block;
}

}  // namespace quartet
